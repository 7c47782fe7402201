"""The architecture, kept true: layers, public names, optional imports, documented names, sizes of files."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "sightline"
TESTS = ROOT / "tests"

# A module imports only from lines above its own; on its own line, only from its own package.
LAYERS = (
    ("errors", "folders", "version"),
    ("caches", "devices", "files", "image_files", "memory", "portable", "shapes"),
    ("biases",),
    ("masks", "normalizers", "positions", "lookup", "targets"),
    ("kernels",),
    ("backends",),
    ("lens",),
    ("parallel",),
    ("nn", "steps"),
    ("models", "watching"),
    ("surveying",),
    ("editing",),
    ("census",),
    ("plots",),
    ("lessons",),
    ("explore",),
    ("web",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

PUBLIC_NAMES = (
    "Choice",
    "Edits",
    "Effects",
    "Mask",
    "Picture",
    "Received",
    "Sight",
    "Spans",
    "Statistic",
    "Top",
    "TopKeys",
    "alibi",
    "attention",
    "caches",
    "causal",
    "declare",
    "dense",
    "documents",
    "edit",
    "effects",
    "errors",
    "load",
    "look",
    "lookup",
    "models",
    "monitor",
    "nn",
    "observe",
    "padding",
    "parallel",
    "positions",
    "prefix",
    "steps",
    "survey",
    "targets",
    "watch",
    "which_backend",
    "window",
)
PUBLIC_SUBMODULES = ("nn", "positions", "lookup", "steps", "models", "caches", "parallel", "targets")

OPTIONAL_PACKAGES = (
    "anywidget",
    "fastapi",
    "gguf",
    "jaxtyping",
    "matplotlib",
    "pandas",
    "pyarrow",
    "ray",
    "rich",
    "tokenizers",
    "transformers",
    "triton",
    "typer",
    "uvicorn",
)
IMPORT_SECONDS = 1.0
LONGEST_FILE = 400


def parts(path: Path) -> tuple[str, ...]:
    """The dotted name of a source file, as a tuple: src/sightline/masks/base.py is (sightline, masks, base)."""
    names = path.relative_to(SRC).with_suffix("").parts
    return names[:-1] if names[-1] == "__init__" else names


def imports(tree: ast.Module, path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every import of a file with its line, absolute, wherever it stands: in functions and type checks too."""
    here = parts(path)
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def layer_violations(source: str, path: Path) -> list[str]:
    """What a file imports although its layer may not, one line of text each."""
    here = parts(path)
    own = here[1]
    found = []
    for line, target in imports(parsed(source), path):
        if target[0] != "sightline":
            continue
        where = f"{path.relative_to(ROOT)}:{line}"
        wanted = target[1] if len(target) > 1 else None
        if wanted == own:
            continue
        if wanted not in LEVEL:
            found.append(f"{where}: imports the top of the package; import from the module that has the name")
        elif LEVEL[wanted] >= LEVEL[own]:
            found.append(f"{where}: {own} may not import {wanted}, which is not in a layer above it")
    return found


@functools.lru_cache(maxsize=1000)  # most checks are of all files, one after the other
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_kept_for_these_tests_alone() -> Iterator[None]:
    yield
    parsed.cache_clear()


def source_files() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, "no source files found: is this test where it should be?"
    return files


def fresh_process(code: str) -> dict[str, object]:
    """Run code in a new interpreter; it prints one JSON object."""
    path = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


# Layers


def test_every_module_has_a_layer() -> None:
    unknown = sorted({parts(path)[1] for path in source_files() if len(parts(path)) > 1} - LEVEL.keys())
    assert not unknown, f"give {unknown} a line in LAYERS here and in DESIGN.md"


def test_modules_import_only_from_layers_above() -> None:
    found = [
        violation
        for path in source_files()
        if path != PACKAGE / "__init__.py"
        for violation in layer_violations(path.read_text(encoding="utf-8"), path)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source, file, allowed",
    [
        ("from sightline.errors import InputError", "masks/base.py", True),
        ("from ..errors import InputError", "masks/base.py", True),
        ("from .. import errors", "masks/base.py", True),
        ("from . import base", "masks/__init__.py", True),
        ("from .base import Mask", "masks/causal.py", True),
        ("from sightline.masks.base import Mask", "masks/causal.py", True),
        ("import torch, sightline.shapes", "lookup.py", True),
        ("from .backends import reference", "lens/__init__.py", True),  # that would be lens.backends
        ("from ..backends import reference", "lens/__init__.py", True),
        ("from ..masks import Mask", "positions/rotary.py", False),
        ("from .normalizers import softmax", "lookup.py", False),
        ("from sightline import nn", "backends/api.py", False),
        ("import sightline.nn", "backends/api.py", False),
        ("def f():\n    from ..lens import Sight", "backends/api.py", False),
        ("if TYPE_CHECKING:\n    from ..lens import Sight", "backends/api.py", False),
        ("import sightline as sl", "nn/head.py", False),
        ("from sightline import Mask", "nn/head.py", False),
        ("from .shapes import sizes_of", "errors.py", False),
    ],
)
def test_the_layer_check_itself(source: str, file: str, allowed: bool) -> None:
    assert (not layer_violations(source, PACKAGE / file)) == allowed


# Between modules

# Packages whose modules import each other in no circle, not even for types.
ORDERLY = ("backends", "kernels", "positions", "plots", "lessons", "explore", "web", "cli")

# What imports something of ours inside a function although no optional package comes with it, and why. Nothing more.
INSIDE = {
    # A run that is asked how strong induction is watches the model once more.
    ("sightline.watching.read.portraits", "sightline.watching.api"),
    # A boolean tensor is a mask of one kind, and all kinds stand on the base.
    ("sightline.masks.base", "sightline.masks.content"),
}


class Import(NamedTuple):
    """One module of ours that imports another, or a package of others."""

    target: str
    inside: bool  # in a function
    types: bool  # under TYPE_CHECKING


def modules() -> dict[str, Path]:
    return {".".join(parts(path)): path for path in source_files()}


def imports_of(path: Path, files: dict[str, Path]) -> set[Import]:
    """All imports of a module; of ours the module that has the name, of others the package."""
    found = set()

    def look(node: ast.AST, inside: bool, types: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for _, target in imports(ast.Module([child], []), path):
                    name = ".".join(target)
                    if target[0] != "sightline":
                        found.add(Import(target[0], inside, types))
                    else:
                        found.add(Import(name if name in files else ".".join(target[:-1]), inside, types))
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            look(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef), types or guarded)

    look(parsed(path.read_text(encoding="utf-8")), False, False)
    return found


def test_modules_import_each_other_in_no_circle() -> None:
    files = modules()
    graph = {
        name: {
            found.target
            for found in imports_of(path, files)
            if found.target in files and not found.types and found.target != name and (name, found.target) not in INSIDE
        }
        for name, path in files.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", ORDERLY)
def test_types_of_a_package_make_no_circle_either(package: str) -> None:
    files = {name: path for name, path in modules().items() if name.startswith(f"sightline.{package}.")}
    graph = {name: {found.target for found in imports_of(path, files)} & files.keys() for name, path in files.items()}
    assert len(graph) > 1
    tuple(TopologicalSorter(graph).static_order())


def test_imports_of_ours_stand_at_the_top_unless_something_optional_comes_with_them() -> None:
    files = modules()
    found = {name: imports_of(path, files) for name, path in files.items()}

    def optional(name: str, seen: set[str]) -> bool:
        """Whether importing a module imports an optional package."""
        seen.add(name)
        top = {one.target for one in found[name] if not one.inside and not one.types}
        inner = {target for target in top if target in files and target not in seen}
        return bool(top & set(OPTIONAL_PACKAGES)) or any(optional(target, seen) for target in inner)

    inside = {
        (name, one.target)
        for name, all_of_it in found.items()
        for one in all_of_it
        if one.inside and one.target in files and not optional(one.target, set())
    }
    assert inside == INSIDE


def test_every_module_can_be_imported_by_its_dotted_name() -> None:
    """Also as `import a.b.c as x`: no function hides a module or a package."""
    names = sorted(modules())
    done = fresh_process(f"""
        import importlib, json

        found = {{}}
        for name in {names!r}:
            package, _, last = name.rpartition(".")
            before = getattr(importlib.import_module(package), last, None) if package else None
            exec(f"import {{name}} as bound")
            module = importlib.import_module(name)
            found[name] = bound is module and before in (None, module) and module.__name__ == name
        print(json.dumps(found))
    """)
    assert done == dict.fromkeys(names, True)


def test_modules_can_be_imported_in_any_order() -> None:
    names = sorted(name for name in modules() if name.startswith(("sightline.explore.", "sightline.web.")))
    done = fresh_process(f"""
        import importlib, json, sys

        for name in {names!r}:
            package = ".".join(name.split(".")[:2])
            for module in [module for module in sys.modules if module.startswith(package)]:
                del sys.modules[module]
            importlib.import_module(name)
        print(json.dumps({{"all": True}}))
    """)
    assert done == {"all": True}


def test_what_the_explorer_shows_needs_no_optional_package() -> None:
    result = fresh_process(f"""
        import importlib, json, sys

        sys.modules.update(dict.fromkeys({OPTIONAL_PACKAGES!r}))
        for name in {sorted(name for name in modules() if name.startswith("sightline.explore"))!r}:
            importlib.import_module(name)
        print(json.dumps({{"web": [name for name in sys.modules if name.startswith("sightline.web")]}}))
    """)
    assert result == {"web": []}


# Masks and biases

# Classes of masks and biases that nobody asks for: what differs between them is a method of theirs.
MASKS = (
    *("Band", "Prefix", "Padding", "Documents", "Dense", "And", "Or", "Not", "Selected", "Flattened"),
    *("ModMask", "Stacked", "Alibi", "ModBias", "SelectedBias", "FlatBias", "GivenBias"),
)
# Torch's own kernel knows a causal flag, a row of padding and a table, and has to ask which of them a mask is. What
# is asked of its outputs (`api._doubtful`) follows from that.
MAY_ASK = ("backends/sdpa.py", "backends/api.py")


def asked(source: str) -> list[int]:
    """The lines that ask whether something is of a class of masks: isinstance, `type(x) is`, a class in a match."""
    lines = []
    for node in ast.walk(parsed(source)):
        told: list[ast.AST] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            told = list(node.args[1:])
        elif isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.In) for op in node.ops
        ):
            told = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            told = [node.cls]
        # In a comparison a class stands by itself: `mask == Band(3, 0)` compares values.
        names = [
            getattr(x, "id", getattr(x, "attr", ""))
            for one in told
            for x in (ast.walk(one) if not isinstance(node, ast.Compare) else [one, *getattr(one, "elts", [])])
        ]
        if set(names) & set(MASKS):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "source, found",
    [
        ("x = 1\nif isinstance(mask, Band): ...", [2]),
        ("isinstance(mask, masks.Band | Prefix)", [1]),
        ("isinstance(bias, (Tensor, Alibi))", [1]),
        ("issubclass(kind, Padding)", [1]),
        ("type(mask) is Band", [1]),
        ("type(mask) in (Band, Prefix)", [1]),
        ("match mask:\n    case Dense(): ...", [2]),
        ("isinstance(mask, Mask) and isinstance(bias, Bias | Tensor)", []),
        ("mask == Band(3, 0)", []),
        ("mask.band is not None", []),
    ],
)
def test_the_check_for_classes_of_masks_itself(source: str, found: list[int]) -> None:
    assert asked(source) == found


def test_nobody_asks_of_which_class_a_mask_or_bias_is() -> None:
    homes = {PACKAGE / "biases.py", *(PACKAGE / "masks").rglob("*.py"), *(PACKAGE / name for name in MAY_ASK)}
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        if path not in homes
        for line in asked(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"give `Mask` or `Bias` a method that answers it: {found}"
    assert all(asked((PACKAGE / name).read_text(encoding="utf-8")) for name in MAY_ASK), "shorten MAY_ASK"


# What is one's own

TORCHS = {name for name in vars(torch.nn.Module()) if name.startswith("_")}


def private(name: str) -> bool:
    """Whether a name is its owner's own: one underscore in front. Notebooks have `_repr_html_`, torch `_modules`."""
    return name.startswith("_") and not name.endswith("_") and not name.startswith("__") and name not in TORCHS


def owned(source: str) -> set[str]:
    """The private attributes and methods of the classes of a file."""
    found: set[str] = set()
    for kind in [node for node in ast.walk(parsed(source)) if isinstance(node, ast.ClassDef)]:
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and private(node.attr):
                found |= {node.attr} if ast.unparse(node.value) in ME else set()
        for node in kind.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if private(name)}


ME = ("self", "cls", "super()")
BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def reached(source: str, package: str, owners: dict[str, set[str]]) -> list[int]:
    """The lines on which a file of a package reaches for what is another package's own.

    That is a private attribute that classes of other packages have, and none of this one (of the lens: none of this
    file); on `self` too, in a class that is made of another package's; or a private name that is imported from another
    package.
    """
    mine = owned(source)
    others = set().union(*(names for other, names in owners.items() if other != package))
    others -= owners.get(package, set()) - (owners["lens"] if package != "lens" else set())
    tree, lines = parsed(source), set()
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sightline."):
            home = (node.module or "").split(".")[1]
            imported |= {alias.asname or alias.name: home for alias in node.names if home != package}
            if home != package and any(private(alias.name) for alias in node.names):
                lines.add(node.lineno)
    heirs: set[int] = set()  # places in classes that are made of another package's
    inherited: set[str] = set()
    for kind in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        bases = [imported[base.id] for base in kind.bases if isinstance(base, ast.Name) and base.id in imported]
        if bases:
            heirs |= {id(node) for node in ast.walk(kind)}
            inherited |= set().union(*(owners.get(base, set()) for base in bases)) - owned(source)
    for node in ast.walk(tree):
        name, on = "", None
        if isinstance(node, ast.Attribute):
            name, on = node.attr, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            on = node.args[0]
        if on is None or not isinstance(name, str) or not private(name):
            continue
        if ast.unparse(on) in ME:
            if id(node) in heirs and name in inherited:
                lines.add(node.lineno)
        elif name in others - mine:
            lines.add(node.lineno)
    return sorted(lines)


def owners_by_package() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in source_files():
        found.setdefault((*parts(path), "")[1], set()).update(owned(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize(
    "source, found",
    [
        ("x = sight._levels", [1]),
        ("x = 1\nx = run.view(0)[1].sight._levels.row", [2]),
        ("getattr(sight, '_levels', None)", [1]),
        ("from sightline.lens.sight import _levels_of", [1]),
        ("from sightline.lens import Sight\nclass Mine(Sight):\n    def f(self):\n        return self._levels", [4]),
        ("from sightline.lens import Sight\nclass Mine(Sight):\n    def f(self):\n        super()._get(3)", [4]),
        ("class Mine:\n    def f(self):\n        self._levels = 3\n        return self._levels", []),
        ("class Mine:\n    def f(self):\n        self._levels = 3\n\ndef g(mine):\n    return mine._levels", []),
        ("run._own + torch._C + sizes._replace(batch=()) + sight.__dict__ + sight._repr_html_()", []),
        ("run._both", [1]),
        ("from sightline.explore.run import _own", []),
        ("sight.levels, sight.kept", []),
    ],
)
def test_the_check_for_what_is_ones_own_itself(source: str, found: list[int]) -> None:
    owners = {"lens": {"_levels", "_get", "_both"}, "explore": {"_own", "_both"}, "web": {"_own"}}
    assert reached(source, "explore", owners) == found


def test_owned_names_are_found() -> None:
    kind = "class A:\n    _x = 1\n    _y: int = 2\n    def _f(self):\n        self._z, self.w = 1, 2"
    assert owned(kind) == {"_x", "_y", "_z", "_f"}
    assert {"_levels", "_kept", "_lacks", "_readable"} <= owners_by_package()["lens"]


# The step of one token stands in for the decoder, and places its token as the decoder does.
MAY_REACH: tuple[str, ...] = ()


def test_no_package_reaches_for_what_is_another_ones_own() -> None:
    owners = owners_by_package()
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in source_files()
        for line in reached(path.read_text(encoding="utf-8"), (*parts(path), "")[1], owners)
    }
    known = {where for where in found if where.partition(":")[0] in MAY_REACH}
    assert {where.partition(":")[0] for where in known} == set(MAY_REACH), "shorten MAY_REACH"
    found -= known
    assert not found, f"give its owner a method of a plain name, or move the code there: {found}"


# Names


def test_public_names_are_pinned() -> None:
    import sightline

    assert sorted(sightline.__all__) == sorted(PUBLIC_NAMES)
    assert len(set(sightline.__all__)) == len(sightline.__all__)


def test_public_names_exist() -> None:
    import sightline

    missing = [name for name in sightline.__all__ if not hasattr(sightline, name)]
    assert not missing


def test_every_public_name_has_an_example() -> None:
    import sightline

    owners = {"sightline": sightline}
    owners |= {f"sightline.{name}": getattr(sightline, name) for name in PUBLIC_SUBMODULES}
    bare = []
    for owner_name, owner in owners.items():
        assert owner.__doc__, f"{owner_name} has no docstring"
        for name in owner.__all__:
            thing = getattr(owner, name)
            if isinstance(thing, ModuleType):
                if not thing.__doc__:
                    bare.append(f"{owner_name}.{name} (no docstring)")
            elif callable(thing) and ">>>" not in (thing.__doc__ or ""):
                bare.append(f"{owner_name}.{name}")
    assert not bare, "\n".join(["without a `>>>` example in its docstring:", *bare])


# Statistics

# Who names a row statistic: its declaration, the passes that have a line of their own for it, the properties of a
# sight, and those who choose what to compute if nobody says. All others go through the declarations.
NAMES_STATISTICS = {
    "lens/statistics.py",
    "lens/sight.py",
    *(
        "lens/cpu/plan.py",
        "lens/cpu/row_sums.py",
        "lens/cpu/native.py",
        "lens/gpu/plan.py",
        "kernels/map_pass.py",
        "kernels/row_stats.py",
    ),
    *("watching/record/account.py", "explore/model_runs.py"),
    *("nn/observe/tap.py", "nn/observe/alarms.py", "plots/trained.py"),
}


def test_a_statistic_is_named_where_it_is_declared() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in source_files()
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("entropy", "max_score")
    }
    assert found == NAMES_STATISTICS, "read sightline.lens.statistics instead of a list of names of one's own"


# Optional imports


def test_import_works_without_any_optional_package() -> None:
    result = fresh_process(f"""
        import json, sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {OPTIONAL_PACKAGES!r}:
                    raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
                return None

        sys.meta_path.insert(0, Blocker())
        import torch
        import sightline

        x = torch.ones(3, 4)
        print(json.dumps({{"shape": list(sightline.attention(x, x, x).shape)}}))
    """)
    assert result == {"shape": [3, 4]}


def test_import_loads_no_optional_package_and_is_quick() -> None:
    result = fresh_process(f"""
        import json, sys, time
        import torch, numpy, safetensors, safetensors.torch

        before = set(sys.modules)
        start = time.process_time()  # of this process: others may keep the machine busy
        import sightline
        seconds = time.process_time() - start
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(json.dumps({{"optional": sorted(loaded & set({OPTIONAL_PACKAGES!r})), "seconds": seconds}}))
    """)
    assert result["optional"] == []
    assert float(str(result["seconds"])) < IMPORT_SECONDS


# Files


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    long = [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n >= LONGEST_FILE]
    assert not long, "\n".join(["much over 300 lines is usually two ideas:", *long])


def test_tests_mirror_src() -> None:
    missing = []
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            if not list((TESTS / path.name).rglob("test_*.py")):
                missing.append(f"tests/{path.name}/test_*.py")
        elif path.suffix == ".py" and path.stem != "__init__" and not (TESTS / f"test_{path.stem}.py").exists():
            missing.append(f"tests/test_{path.stem}.py")
    assert not missing, f"source without a test beside it: {missing}"


SKIPS = {"skip", "skipif", "skipIf", "skipUnless", "xfail", "importorskip", "SkipTest", "expectedFailure"}


def skips(source: str) -> list[int]:
    """The lines on which a test file skips or expects to fail."""
    lines = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and node.attr in SKIPS:
            owner: ast.expr = node.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name) and owner.id in {"pytest", "unittest", "mark"}:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in {"pytest", "unittest"}:
            lines += [node.lineno for alias in node.names if alias.name in SKIPS]
    return lines


@pytest.mark.parametrize(
    "source, found",
    [
        ("@pytest.mark.skip\ndef test(): ...", [1]),
        ("pytestmark = pytest.mark.skipif(True, reason='no')", [1]),
        ("def test():\n    pytest.importorskip('triton')", [2]),
        ("from pytest import xfail", [1]),
        ("@unittest.skipUnless(False, 'no')\ndef test(): ...", [1]),
        ("tokens.skip(2); skip = stream.mark", []),
    ],
)
def test_the_skip_check_itself(source: str, found: list[int]) -> None:
    assert skips(source) == found


def test_no_test_is_skipped_except_for_want_of_a_gpu() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if TESTS / "gpu" not in path.parents and path not in {TESTS / "conftest.py", Path(__file__).resolve()}
        for line in skips(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"a skip may only mean that there is no GPU: {found}"
    # conftest.py skips tests/gpu, once, and says why.
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8")
    assert len(skips(conftest)) == 1
    assert 'pytest.mark.skip(reason="no GPU")' in conftest
