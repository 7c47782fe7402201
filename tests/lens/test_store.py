"""A sight comes back from its file as it was, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.torch import save_file

import sightline as sl
from cases import Case, cases, inputs
from sightline.errors import InputError, InputTypeError, SightFileError
from sightline.lens import store

PICTURES = (sl.Picture(9, 7), sl.Picture(cell=(2, 3), reduce="max"), sl.Picture(5, rows=slice(1, 3), visible_only=True))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def there_and_back(sight: sl.Sight, folder: Path, **options: bool) -> sl.Sight:
    sight.save(folder / "one.sight", **options)
    return sl.Sight.load(folder / "one.sight")


def agree(sight: sl.Sight, loaded: sl.Sight) -> None:
    """What was saved to the bit; what is computed from it but for the last bits, which the place in memory decides."""
    assert loaded.shape == sight.shape
    assert same(sight.row, loaded.row)
    assert same(sight.call.q, loaded.call.q)
    assert same(sight.call.k, loaded.call.k)
    for name in ("entropy", "max_score", "distance", "total", "sink_share"):
        assert nearly(getattr(sight, name), getattr(loaded, name)), name
    assert nearly(sight.received(), loaded.received())
    assert nearly(sight.top(3).weights, loaded.top(3).weights)
    assert nearly(sight.tile(slice(None), slice(None)), loaded.tile(slice(None), slice(None)))
    if sight.call.sizes.queries and sight.call.sizes.keys:
        assert nearly(sight.picture(size=(4, 5), visible_only=True), loaded.picture(size=(4, 5), visible_only=True))


def nearly(one: torch.Tensor, other: torch.Tensor) -> bool:
    least = 1e-13 if one.dtype == torch.float64 else 2e-6
    return one.dtype == other.dtype and torch.allclose(one, other, rtol=least, atol=least, equal_nan=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(rarely=()))
def test_any_sight_comes_back(tmp_path: Path, case: Case) -> None:
    sight = sl.look(case.q, case.k, **case.options)
    loaded = there_and_back(sight, tmp_path)
    assert loaded.call.q.dtype == case.q.dtype
    if case.options.get("mask") is not None:
        queries, keys = case.q.shape[-2], case.k.shape[-2]
        dense = loaded.call.mask.to_dense(queries, keys).expand(case.table.shape)
        assert torch.equal(dense, case.table)
    agree(sight, loaded)


def masks() -> list[sl.Mask]:
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    table = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    plain = [
        sl.causal(),
        sl.causal(align="start"),
        sl.window(2),
        sl.window(None, 1),
        sl.window(1, None),
        sl.window(None, None),
        sl.prefix(3),
        sl.documents(ids),
        sl.documents(ids[2:], ids),
        sl.padding([4, 6]),
        sl.padding(torch.rand(2, 7) < 0.5),
        sl.dense(table),
    ]
    return [
        *plain,
        ~plain[0],
        ~~plain[6],
        plain[0] & plain[1],
        plain[0] & plain[7],
        (plain[2] | ~plain[9]) & ~(plain[11] | (plain[8] & plain[10])),
        plain[7] | plain[7],
    ]


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_every_mask_comes_back(mask: sl.Mask, tmp_path: Path) -> None:
    q, k, _ = inputs(2, queries=5, keys=7)
    sight = sl.look(q, k, mask=mask)
    loaded = there_and_back(sight, tmp_path)
    assert torch.equal(loaded.call.mask.to_dense(5, 7), mask.to_dense(5, 7))
    assert str(loaded.call.mask) == str(mask)
    agree(sight, loaded)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": sl.alibi(2)},
        {"bias": torch.randn(5, 7)},
        {"bias": torch.randn(2, 1, 7, dtype=torch.bfloat16)},
        {"sinks": torch.randn(2)},
        {"sinks": torch.randn(2, 2)},
        {"softcap": 3.0, "scale": 0.1},
        {"normalizer": "relu"},
        {"normalizer": "sigmoid", "mask": sl.causal()},
        {"normalizer": "uniform", "mask": sl.prefix(2)},
    ],
    ids=lambda o: "-".join(o),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_option_comes_back(options: dict, dtype: torch.dtype, tmp_path: Path) -> None:
    q, k, _ = inputs(2, queries=5, keys=7, dtype=dtype)
    sight = sl.look(q, k, **options)
    loaded = there_and_back(sight, tmp_path)
    assert loaded.call.q.dtype == loaded.call.k.dtype == dtype
    agree(sight, loaded)


def test_a_flat_sight_comes_back_flat(tmp_path: Path) -> None:
    sight = sl.look(torch.randn(5, 4), torch.randn(7, 4), stats=("entropy", sl.Top(2)))
    loaded = there_and_back(sight, tmp_path)
    assert loaded.shape == (5, 7)
    assert loaded.entropy.shape == (5,)
    agree(sight, loaded)


def test_a_sight_of_inputs_with_gradients_and_strides(tmp_path: Path) -> None:
    q = torch.randn(2, 4, 9, requires_grad=True).mT
    _, sight = sl.observe(q, q, q, sinks=torch.zeros(2, requires_grad=True))
    agree(sight, there_and_back(sight, tmp_path))


def test_what_was_computed_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = inputs(1)
    sight = sl.look(q, k, stats=("entropy", "distance", "max_score", "received", sl.Top(4), *PICTURES))
    loaded = there_and_back(sight, tmp_path)
    monkeypatch.setattr("sightline.lens.plan.walk", lambda *_, **__: pytest.fail("walked"))
    assert set(loaded.kept) == set(sight.kept)
    assert same(loaded.entropy, sight.entropy)
    assert same(loaded.top(4).keys, sight.top(4).keys)
    assert same(loaded.picture(size=(9, 7)), sight.picture(size=(9, 7)))
    assert same(loaded.picture(cell=(2, 3), reduce="max"), sight.picture(cell=(2, 3), reduce="max"))
    part = {"rows": slice(1, 3), "size": (5, 5), "visible_only": True}
    assert same(loaded.picture(**part), sight.picture(**part))


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s.distance,
        lambda s: s.max_score,
        lambda s: s.received(),
        lambda s: s.received(torch.ones(1, 2, 6)),
        lambda s: s.top(3),
        lambda s: s.tile(slice(0, 1), slice(0, 1)),
        lambda s: s.picture(),
        lambda s: s.prepare("entropy", "received"),
    ],
    ids=["distance", "max_score", "received", "weighted", "top", "tile", "picture", "prepare"],
)
def test_without_q_and_k_the_rest_is_an_error_that_says_so(ask: Callable[[sl.Sight], Any], tmp_path: Path) -> None:
    q, k, _ = inputs(1)
    loaded = there_and_back(sl.look(q, k, stats=("entropy",)), tmp_path, keep_qk=False)
    with pytest.raises(InputError, match="needs q and k, which were not kept") as caught:
        ask(loaded)
    assert "keep_qk=True" in str(caught.value)


def test_without_q_and_k_what_was_computed_is_readable(tmp_path: Path) -> None:
    q, k, _ = inputs(1)
    sinks = torch.zeros(2, dtype=torch.float64)
    sight = sl.look(q, k, sinks=sinks, mask=sl.causal(), stats=("entropy", "received", sl.Top(2), *PICTURES))
    whole = tmp_path / "whole.sight"
    sight.save(whole)
    loaded = there_and_back(sight, tmp_path, keep_qk=False)
    assert (tmp_path / "one.sight").stat().st_size < whole.stat().st_size
    assert same(loaded.lse, sight.lse)
    assert same(loaded.entropy, sight.entropy)
    assert same(loaded.received(), sight.received())
    assert torch.allclose(loaded.total, sight.total, atol=1e-12)
    assert same(loaded.sink_share, sight.sink_share)
    assert same(loaded.top(2).weights, sight.top(2).weights)
    assert same(loaded.picture(size=(9, 7)), sight.picture(size=(9, 7)))
    assert loaded.device == torch.device("cpu")
    assert "causal()" in repr(loaded)
    again = there_and_back(loaded, tmp_path)
    assert same(again.entropy, sight.entropy)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    q, k, _ = inputs(1, heads=4, kv_heads=2, queries=3, keys=5)
    sl.look(q, k, mask=sl.causal(), scale=0.25).save(tmp_path / "x.sight")
    with safe_open(str(tmp_path / "x.sight"), framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
        assert set(file.keys()) == {"row", "q", "k"}
    assert about["sizes"] == [[1], 4, 2, 3, 5, 4, 4]
    assert (about["scale"], about["normalizer"], about["format"]) == (0.25, "softmax", 3)


def test_saved_files_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    q, k, _ = inputs(1)
    umask = os.umask(0o022)
    try:
        sl.look(q, k).save(tmp_path / "x.sight")
    finally:
        os.umask(umask)
    assert (tmp_path / "x.sight").stat().st_mode & 0o777 == 0o644


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    q, k, _ = inputs(1, heads=4, kv_heads=2)
    options = {
        "mask": sl.causal() & sl.documents(torch.arange(6) // 2),
        "sinks": torch.randn(4),
        "bias": torch.randn(6, 6),
    }
    sl.look(q, k, **options, stats=("entropy", "received", sl.Top(2), sl.Picture(3, 3))).save(tmp_path / "good.sight")
    return tmp_path / "good.sight"


def refused(path: Path) -> str:
    with pytest.raises(SightFileError) as caught:
        sl.Sight.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path.name} is not a sight")
    for part in ("\n  expected: a whole file written by Sight.save", "\n  got: ", "\n  try: "):
        assert part in text
    return text


def test_a_file_cut_short_is_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.sight").write_bytes(data[:length])
        refused(tmp_path / "cut.sight")
    (tmp_path / "cut.sight").write_bytes(data + b"x")
    refused(tmp_path / "cut.sight")


def test_flipped_bytes_in_the_header_are_refused(saved: Path, tmp_path: Path) -> None:
    """A high bit is never valid there; a low bit may make another valid number, but never another kind of error."""
    data = saved.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    damaged = tmp_path / "flipped.sight"
    for place in range(0, header, 7):
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])
        refused(damaged)
    for place in range(0, header, 2):
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :])
        with contextlib.suppress(SightFileError):
            sl.Sight.load(damaged)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.sight"
    save_file({"weight": torch.ones(3)}, path)
    refused(path)
    save_file({"weight": torch.ones(3)}, path, metadata={"format": "pt"})
    refused(path)
    for text in ("Dear reader,\nthis is a letter and not a sight.\n", "{}", "\0" * 64):
        path.write_text(text)
        refused(path)
    torch.save({"q": torch.ones(2)}, path)
    refused(path)
    for about in ("not JSON", "3", "null", "[]", "{}", '{"format": 1}', "[" * 100_000):
        save_file({"row": torch.ones(3)}, path, metadata={"sightline": about})
        refused(path)


CHANGES: dict[str, Callable[[dict, dict], Any]] = {
    "a format of 0": lambda about, t: about.update(format=0),
    "a format in words": lambda about, t: about.update(format="1"),
    "fewer queries": lambda about, t: about.update(sizes=[[1], 4, 2, 5, 6, 4, 4]),
    "fewer keys": lambda about, t: about.update(sizes=[[1], 4, 2, 6, 5, 4, 4]),
    "another batch": lambda about, t: about.update(sizes=[[2], 4, 2, 6, 6, 4, 4]),
    "too few sizes": lambda about, t: about.update(sizes=[[1], 4]),
    "sizes as words": lambda about, t: about.update(sizes=[["a"], 4, 2, 6, 6, 4, 4]),
    "heads that do not divide": lambda about, t: (
        about.update(sizes=[[1], 4, 3, 6, 6, 4, 4]),
        t.update(k=torch.ones(1, 3, 6, 4).double()),
    ),
    "q of another shape": lambda about, t: t.update(q=torch.ones(1, 4, 6, 3).double()),
    "q without k": lambda about, t: t.pop("k"),
    "k of another dtype": lambda about, t: t.update(k=t["k"].float()),
    "q of whole numbers": lambda about, t: t.update(q=t["q"].long(), k=t["k"].long()),
    "no row numbers": lambda about, t: t.pop("row"),
    "row numbers of another shape": lambda about, t: t.update(row=torch.ones(3)),
    "an unknown normalizer": lambda about, t: about.update(normalizer="hardmax"),
    "no scale": lambda about, t: about.update(scale=None),
    "an infinite scale": lambda about, t: about.update(scale=float("inf")),
    "a soft-cap of 0": lambda about, t: about.update(softcap=0.0),
    "a mask without its tensor": lambda about, t: about.update(mask={"is": "dense", "table": "nowhere"}),
    "a mask that does not fit": lambda about, t: about.update(mask={"is": "dense", "table": "sinks"}),
    "a window of words": lambda about, t: about.update(mask={"is": "band", "left": "a", "right": 0, "align": "end"}),
    "a mask that is a list": lambda about, t: about.update(mask=[1, 2]),
    "alibi of other heads": lambda about, t: about.update(bias={"alibi": 3}),
    "a bias that does not fit": lambda about, t: t.update(bias=torch.ones(5, 5)),
    "sinks that do not fit": lambda about, t: t.update(sinks=torch.ones(3)),
    "an unknown statistic": lambda about, t: about["kept"].append("kurtosis"),
    "a statistic without its tensor": lambda about, t: about["kept"].append("distance"),
    "a statistic of another shape": lambda about, t: t.update({"kept.0.0": torch.ones(2, 2)}),
    "top keys of another shape": lambda about, t: t.update(
        {name: torch.ones(2, 2) for name in t if name.endswith(".1")}
    ),
    "statistics that are no list": lambda about, t: about.update(kept=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_descriptions_that_do_not_hold_are_refused(name: str, saved: Path) -> None:
    with safe_open(str(saved), framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, saved, metadata={"sightline": json.dumps(about)})
    sl.Sight.load(saved)
    CHANGES[name](about, tensors)
    save_file(tensors, saved, metadata={"sightline": json.dumps(about)})
    refused(saved)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sl.Sight.load(tmp_path / "nowhere.sight")
    refused(tmp_path)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: object) -> None:
        path.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(store, "write_tensors", fail)
    q, k, _ = inputs(1)
    with pytest.raises(type(error)):
        sl.look(q, k).save(tmp_path / "x.sight")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.sight").write_bytes(b"what was there before")
    with pytest.raises(type(error)):
        sl.look(q, k).save(tmp_path / "x.sight")
    assert [p.name for p in tmp_path.iterdir()] == ["x.sight"]
    assert (tmp_path / "x.sight").read_bytes() == b"what was there before"


def test_a_newer_format_is_refused_by_its_number(saved: Path) -> None:
    """Whatever else is in it."""
    for about in ({"format": store.FORMAT + 1, "new": {}}, {"format": 10**30}):
        save_file({"other": torch.ones(3)}, saved, metadata={"sightline": json.dumps(about)})
        with pytest.raises(SightFileError, match=r"good.sight was written by a newer version of Sightline") as caught:
            sl.Sight.load(saved)
        assert f"\n  expected: format {store.FORMAT} or older, which this version reads\n" in str(caught.value)
        assert "upgrade" in str(caught.value)
    assert "got: format a whole number of about 31 digits" in str(caught.value)


def test_an_older_file_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = inputs(1)
    sl.look(q, k, stats=("entropy",)).save(tmp_path / "x.sight", keep_qk=False)
    newest = store.FORMAT
    monkeypatch.setattr(store, "FORMAT", newest + 2)
    monkeypatch.setitem(store.LACKS, newest, "the middle of each row")
    monkeypatch.setitem(store.LACKS, newest + 1, "its end")
    old = sl.Sight.load(tmp_path / "x.sight")
    assert old.entropy.shape == (1, 2, 6)
    lacks = f"format {newest}, without the middle of each row and its end"
    with pytest.raises(InputError, match=f"got: one without, from a file of {lacks}"):
        old.top(3)
    sl.look(q, k).save(tmp_path / "x.sight", keep_qk=False)
    with pytest.raises(InputError, match="got: one without\n"):
        sl.Sight.load(tmp_path / "x.sight").top(3)


def test_a_sight_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    q, k, _ = inputs(1)
    sl.look(q, k).save(tmp_path / "x.sight")
    assert synced == [False, True], "the file, and then the folder"


def test_alibi_of_some_heads_is_not_taken_for_another(tmp_path: Path) -> None:
    """Its slopes are not those of so many heads."""
    q, k, _ = inputs(1)
    with pytest.raises(InputTypeError, match="this bias cannot be saved"):
        sl.look(q, k, bias=sl.alibi(8).select(heads=[2, 5])).save(tmp_path / "x.sight")
    assert list(tmp_path.iterdir()) == []


def test_everything_goes_to_the_device_that_is_asked_for(saved: Path) -> None:
    q, k, _ = inputs(1, heads=4, kv_heads=2)
    mask = sl.causal() & ~sl.documents(torch.arange(6) // 2) | sl.padding([3])
    sl.look(q, k, mask=mask, sinks=torch.zeros(4), bias=torch.zeros(6, 6), stats=("entropy", sl.Top(2))).save(saved)
    there = sl.Sight.load(saved, "meta")
    call, meta = there.call, torch.device("meta")
    tensors = [there.lse, there.entropy, *there.top(2), call.q, call.k, call.bias, call.sinks]
    tensors += [call.mask.left.right.mask.ids, call.mask.right.lengths]
    assert {t.device for t in tensors} == {meta}
    assert call.v is call.k


def test_windows_beyond_all_keys(tmp_path: Path) -> None:
    q, k, _ = inputs(1)
    for left in (10**6, 2**40):
        sight = sl.look(q, k, mask=sl.window(left))
        loaded = there_and_back(sight, tmp_path)
        assert str(loaded.call.mask) == f"window({left}, 0)"
        agree(sight, loaded)


def test_saving_over_a_file_replaces_it(tmp_path: Path) -> None:
    first, second = (sl.look(*inputs(1, seed=seed)[:2]) for seed in (1, 2))
    first.save(tmp_path / "x.sight")
    second.save(str(tmp_path / "x.sight"))
    assert same(sl.Sight.load(str(tmp_path / "x.sight")).lse, second.lse)
    assert [p.name for p in tmp_path.iterdir()] == ["x.sight"]


class Stripes(sl.Mask):
    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> torch.Tensor:
        return (torch.arange(columns.start, columns.stop) % 2 == 0).expand(rows.stop - rows.start, -1)

    def kinds(self, row_edges: Any, column_edges: Any, queries: int, keys: int) -> Any:
        import numpy as np

        return np.ones((len(row_edges) - 1, len(column_edges) - 1), dtype=np.int8)


class Slope:
    """A bias of one's own, as the protocol allows."""

    def tile(
        self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device, dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.arange(columns.start, columns.stop, dtype=dtype).expand(rows.stop - rows.start, -1)

    def to_dense(self, queries: int, keys: int) -> torch.Tensor:
        return self.tile(slice(0, queries), slice(0, keys), queries, keys, torch.device("cpu"), torch.float64)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        pass


def test_a_mask_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    q, k, _ = inputs(1)
    given = Stripes()
    given.rule = lambda j: j % 2 == 0  # type: ignore[attr-defined]
    for mask in (given, sl.causal() & ~given):
        with pytest.raises(InputTypeError, match="this mask cannot be saved") as caught:
            sl.look(q, k, mask=mask).save(tmp_path / "x.sight")
        assert "got: Stripes, whose `rule` is neither" in str(caught.value)
        assert "to_dense" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["mine.masks", None])
def test_a_mask_that_is_not_known_says_what_to_import(module: str | None, saved: Path) -> None:
    with safe_open(str(saved), framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    about["mask"] = {"is": "Lattice", "fields": {}} | ({"module": module} if module else {})
    save_file(tensors, saved, metadata={"sightline": json.dumps(about)})
    with pytest.raises(SightFileError, match="a mask of a class that is not known here") as caught:
        sl.Sight.load(saved)
    text = str(caught.value)
    assert "expected: &, band, dense, documents, flattened, padding, prefix, selected, uncut, |, ~, or a class" in text
    assert "got: mask.is: Lattice" in text
    assert ("try: import mine.masks, where class Lattice" if module else "try: import its module, where") in text


def test_a_bias_of_ones_own_is_refused(tmp_path: Path) -> None:
    """Not left out: the weights would be others."""
    q, k, _ = inputs(1)
    with pytest.raises(InputTypeError, match="this bias cannot be saved"):
        sl.look(q, k, bias=Slope()).save(tmp_path / "x.sight")
    assert list(tmp_path.iterdir()) == []
