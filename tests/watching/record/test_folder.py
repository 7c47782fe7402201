"""A run as a folder: equal after reading, readable while it is written, and refused when it is not ours."""

from __future__ import annotations

import json
import os

import pytest
import torch

import watch_cases as tiny
from sightline.errors import InputError, SightFileError
from sightline.watching import load, watch


def run(family="llama", padding="left", generate=False, **options):
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    given = tiny.inputs(family, padding)
    with torch.no_grad(), watch(model, **options) as seen:
        if generate:
            given.pop("decoder_input_ids", None)
            model.generate(**given, max_new_tokens=4, do_sample=False)
        else:
            model(**given)
    return seen


def equal(a, b):
    assert a.layers == b.layers
    assert a.meta == b.meta
    assert (a.ids, a.memory_ids, a.tokens, a.memory_tokens) == (b.ids, b.memory_ids, b.tokens, b.memory_tokens)
    for name in a.layers:
        assert a.kind(name) == b.kind(name)
        assert a.heads(name) == b.heads(name)
        x, y = a[name], b[name]
        assert x.shape == y.shape
        assert x.has_qk == y.has_qk
        assert torch.equal(x.lse, y.lse)
        assert x.kept.keys() == y.kept.keys()
        for request, value in x.kept.items():
            pairs = zip(value, y.kept[request]) if isinstance(value, tuple) else [(value, y.kept[request])]
            assert all(torch.equal(*pair) for pair in pairs)
        *_, queries, keys = x.shape
        area = slice(0, queries), slice(0, keys)
        assert torch.equal(x.tile(*area), y.tile(*area))
        mine, theirs = a.shares(name), b.shares(name)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[share], theirs[share]) for share in mine)
    assert a.portraits() == b.portraits()


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss", "bert", "t5"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_saved_run_is_the_same(tmp_path, family, keep):
    seen = run(family, keep_qk=keep)
    loaded = load(seen.save(tmp_path / "run"))
    assert loaded.complete
    equal(seen, loaded)
    if family != "t5":
        assert torch.equal(seen.rollout(heads=0), loaded.rollout(heads=0))


@pytest.mark.parametrize("family", ["llama", "mistral", "t5"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_saved_generation_is_the_same(tmp_path, family, keep):
    seen = run(family, keep_qk=keep, generate=True)
    equal(seen, load(seen.save(tmp_path / "run")))


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_written_while_it_runs(tmp_path, generate, keep):
    folder = tmp_path / "run"
    options = {"keep_qk": str(folder)} if keep else {"folder": folder}
    seen = run("t5", generate=generate, **options)
    held = [part for layer in seen._layers.values() for part in layer.parts if "q" in part.found]
    assert not held, "q and k are on disk"
    loaded = load(folder)
    assert loaded.complete
    equal(seen, loaded)
    assert loaded[0].has_qk == keep
    assert not list(folder.glob(".*"))
    assert len(list(folder.iterdir())) == 1 + 2 * len(seen), "nothing that no index names"


def test_it_can_be_read_before_the_run_is_over(tmp_path):
    folder, model, given = tmp_path / "run", tiny.model("llama"), tiny.inputs("llama")
    found = []

    def look(module, args, output):
        found.append(load(folder))

    model.model.layers[0].register_forward_hook(look)
    with torch.no_grad(), watch(model, folder=folder) as seen:
        assert load(folder).layers == []
        model(**given)
    assert found[0].layers == ["model.layers.0.self_attn"]
    assert not found[0].complete
    assert torch.equal(found[0][0].entropy, seen[0].entropy)


def test_a_run_that_failed_is_not_complete(tmp_path):
    model = tiny.model("llama")

    def fail():
        with watch(model, folder=tmp_path / "run"):
            model(**tiny.inputs("llama"))
            raise RuntimeError

    with torch.no_grad(), pytest.raises(RuntimeError):
        fail()
    loaded = load(tmp_path / "run")
    assert not loaded.complete
    assert len(loaded) == 2


def test_a_folder_can_be_moved_and_written_again(tmp_path):
    seen = run()
    seen.tokens = [["a", " ü", "\n"]] * 3
    seen.save(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    equal(seen, load(tmp_path / "two"))
    shorter = run("bert", heads=[1])
    shorter.save(tmp_path / "two")
    equal(shorter, load(tmp_path / "two"))


def test_a_run_is_not_written_over_itself(tmp_path):
    seen = run(keep_qk=tmp_path / "one")
    for own in (seen, load(tmp_path / "one")):
        with pytest.raises(InputError, match="in this folder already"):
            own.save(tmp_path / "one")
    equal(seen, load(load(tmp_path / "one").save(tmp_path / "two")))


def test_without_queries_and_keys_on_request(tmp_path):
    seen = run(keep_qk=True)
    assert seen[0].has_qk
    assert not load(seen.save(tmp_path / "run", keep_qk=False))[0].has_qk


def test_a_mask_that_is_a_function_is_written_out(tmp_path):
    seen = run("llama", None, keep_qk=True)
    from sightline.masks.functions import ModMask

    sight = seen[0]
    sight._levels.call = sight.call.replace(mask=ModMask(lambda b, h, i, j: i >= j, 3))
    loaded = load(seen.save(tmp_path / "run"))
    area = slice(0, 12), slice(0, 12)
    torch.testing.assert_close(loaded[0].tile(*area), sight.tile(*area))


def test_other_folders_are_left_alone(tmp_path):
    seen = run()
    (tmp_path / "photo.png").write_bytes(b"")
    with pytest.raises(InputError, match="holds something else"):
        seen.save(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="saved as a folder"):
        seen.save(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "photo.png"]


def index(folder):
    return json.loads((folder / "index.json").read_text())


def put(folder, content):
    (folder / "index.json").write_text(content if isinstance(content, str) else json.dumps(content))


DAMAGE = {
    "cut short": lambda c: json.dumps(c)[:-20],
    "not JSON": lambda c: "pickle",
    "a list": lambda c: [c],
    "deeply nested": lambda c: "[" * 100_000,
    "another format": lambda c: c | {"format": "other"},
    "version 0": lambda c: c | {"version": 0},
    "no version": lambda c: {k: v for k, v in c.items() if k != "version"},
    "no layers": lambda c: {k: v for k, v in c.items() if k != "layers"},
    "a path out": lambda c: c | {"layers": [c["layers"][0] | {"file": "../secret.safetensors"}]},
    "an absolute path": lambda c: c | {"layers": [c["layers"][0] | {"rows": "/etc/passwd"}]},
    "a backslash": lambda c: c | {"layers": [c["layers"][0] | {"file": "..\\x"}]},
    "a number for a path": lambda c: c | {"layers": [c["layers"][0] | {"file": 3}]},
    "a layer twice": lambda c: c | {"layers": c["layers"][:1] * 2},
    "an odd kind": lambda c: c | {"layers": [c["layers"][0] | {"kind": "other"}]},
    "odd heads": lambda c: c | {"layers": [c["layers"][0] | {"heads": ["x"]}]},
    "odd tokens": lambda c: c | {"tokens": [[1]]},
    "odd ids": lambda c: c | {"ids": [["x"]]},
    "odd meta": lambda c: c | {"meta": 3},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_refused(tmp_path, damage):
    folder = run().save(tmp_path / "run")
    put(folder, DAMAGE[damage](index(folder)))
    with pytest.raises(SightFileError, match="run is not a watched run"):
        load(folder)


def test_a_newer_version_is_refused_by_its_number(tmp_path):
    folder = run().save(tmp_path / "run")
    put(folder, {"format": "sightline-seen", "version": 7, "new": {}})
    with pytest.raises(SightFileError, match="run was written by a newer version of Sightline") as caught:
        load(folder)
    assert "expected: format 3 or older" in str(caught.value)
    assert "got: format 7" in str(caught.value)
    with pytest.raises(SightFileError, match="newer version"):
        run().save(folder)  # nor is it written over


def test_layers_are_on_the_disk_before_the_index_that_names_them(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def noted(handle):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append("index" if ".index.json." in name else name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "run"
    seen = run(folder=folder)
    files = [f"000{i}-1{rows}.safetensors" for i in range(len(seen)) for rows in ("", "-rows")]
    assert synced == [tmp_path.name, *files, "run", "index", "run"], "and nothing waits while the model runs"


def test_a_disk_that_is_full_leaves_the_last_whole_index(tmp_path, monkeypatch):
    import resource

    seen = run()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            seen.save(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["index.json"]
    assert not load(tmp_path / "run").complete
    equal(seen, load(seen.save(tmp_path / "run")))


@pytest.mark.parametrize("name", ["0000-1.safetensors", "0000-1-rows.safetensors"])
@pytest.mark.parametrize("how", ["cut", "gone", "other", "link"])
def test_a_damaged_layer_is_refused_when_it_is_read(tmp_path, name, how):
    folder = run().save(tmp_path / "run")
    path = folder / name
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif how == "gone":
        path.unlink()
    elif how == "other":
        path.write_bytes((run("bert", heads=[0]).save(tmp_path / "other") / name).read_bytes())
    else:
        os.rename(path, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")

    def read():
        seen = load(folder)
        if how == "other" and "rows" not in name:
            seen._layers[seen.layers[0]].heads = [0, 1, 2, 3]
        return seen[0], seen.shares(0)

    with pytest.raises(SightFileError):
        read()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load(tmp_path / "nothing")
    with pytest.raises(SightFileError):
        load(tmp_path)
