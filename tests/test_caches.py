"""What is kept between calls has a name, a bound and an end; and nothing else is kept."""

from __future__ import annotations

import ast
import gc
import importlib
import threading
from pathlib import Path
from weakref import ref

import pytest
import torch

import sightline as sl
from sightline import caches
from sightline.backends import sdpa
from sightline.backends.empty_rows import blind_rows
from sightline.errors import InputError
from sightline.lens.cpu import threads as workers
from sightline.lens.gpu import plan as gpu_plan

PACKAGE = Path(sl.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "caches.py")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def entries(name: str) -> int:
    return {cache.name: cache.entries for cache in caches.listed()}[name]


# Names and bounds


def registered() -> list[tuple[Path, str]]:
    """Every cache that some module makes, as the source says it."""
    found = []
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS:
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: a name is written out"
                found.append((path, node.args[0].value))
    return found


MAKERS = ("caches.held", "caches.memo", "caches.memo_by_bytes")


def test_every_cache_has_a_name_of_its_own_in_its_package() -> None:
    made = registered()
    names = [name for _, name in made]
    assert len(set(names)) == len(names) > 20
    for path, name in made:
        assert name.split(".")[0] == path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert name.count(".") == 1


def test_every_cache_is_listed_and_bounded() -> None:
    for path, _ in registered():
        importlib.import_module(".".join(("sightline", *path.relative_to(PACKAGE).with_suffix("").parts)))
    found = {cache.name: cache for cache in caches.listed()}
    assert found.keys() == {name for _, name in registered()}
    # What was heard of a model goes with the model.
    assert {name for name, cache in found.items() if cache.most is None} == {
        "watching.passes",
        "watching.patches",
        "editing.layers",
    }
    assert all(cache.entries <= cache.most for cache in found.values() if cache.most is not None)


# Filling and emptying


def look() -> sl.Sight:
    torch.manual_seed(5)
    q, k = torch.randn(2, 4, 33, 8), torch.randn(2, 2, 47, 8)
    left = torch.arange(47) >= torch.tensor([[5], [0]])
    return sl.look(q, k, mask=sl.causal() & sl.padding(left), stats=("entropy", sl.Picture(7, 5)))


def attend() -> torch.Tensor:
    torch.manual_seed(5)
    x = torch.randn(2, 4, 33, 8)
    # On a GPU `attention` does this with masks of short texts.
    table = sdpa._written(sl.window(5) & sl.padding([33, 20]), 33, 33, x.device)
    out = sl.attention(x, x, x, mask=sl.dense(table), backend="sdpa")
    assert blind_rows(table) is not None
    return out


def test_all_are_filled_and_emptied_and_give_the_same_again() -> None:
    sl.caches.clear()
    assert {cache.name: cache.entries for cache in caches.listed() if cache.entries} == {}
    before, out = look(), attend()
    filled = {cache.name for cache in caches.listed() if cache.entries}
    assert {"lens.axes", "backends.tables", "backends.empty_rows"} <= filled
    sl.caches.clear()
    assert {cache.name: cache.entries for cache in caches.listed() if cache.entries} == {}
    after = look()
    assert torch.equal(before.entropy, after.entropy)
    assert torch.equal(before.value(sl.Picture(7, 5)), after.value(sl.Picture(7, 5)))
    assert torch.equal(attend(), out)


def test_some_are_emptied_by_name_or_package() -> None:
    look(), attend()
    sl.caches.clear("backends.tables")
    assert entries("backends.tables") == 0
    assert entries("backends.empty_rows") > 0
    assert entries("lens.axes") > 0
    sl.caches.clear("lens")
    assert entries("lens.axes") == 0
    assert entries("backends.empty_rows") > 0


@pytest.mark.parametrize("name", ["len", "lens.", "axes", "", 3, "lens.axes.more"])
def test_an_unknown_name_empties_nothing(name: object) -> None:
    look()
    with pytest.raises(InputError, match=r"there is no such cache(.|\n)*lens.axes"):
        sl.caches.clear("lens", name)  # type: ignore[arg-type]
    assert entries("lens.axes") > 0


def test_threads_that_are_let_go_end_and_others_come() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert workers.spread([lambda i=i: i for i in range(9)]) == list(range(9))
        assert entries("lens.threads") == 1
        pool = ref(next(iter(workers._pools.values())))
        sl.caches.clear("lens.threads")
        gc.collect()
        assert pool() is None
        assert workers.spread([lambda i=i: i for i in range(9)]) == list(range(9))
    finally:
        torch.set_num_threads(before)


def test_emptying_while_others_work() -> None:
    stop, wrong, rounds = threading.Event(), list[object](), list[int]()
    threads = [threading.Thread(target=attend_often, args=(stop, wrong, rounds)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(rounds) < 40 and not wrong:
        sl.caches.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def attend_often(stop: threading.Event, wrong: list, rounds: list[int]) -> None:
    x = torch.ones(2, 4, 33, 8)
    mask = sl.window(5) & sl.padding([33, 20])
    want = sl.look(x, x, mask=mask, stats=sl.Picture(3, 5)).picture(size=(3, 5))
    try:
        while not stop.is_set():
            table = sdpa._written(mask, 33, 33, x.device)
            assert blind_rows(table) is not None
            got = sl.look(x, x, mask=mask, stats=sl.Picture(3, 5)).picture(size=(3, 5))
            if not torch.equal(got, want):
                wrong.append("other numbers")
            rounds.append(1)
    except BaseException as error:
        wrong.append(error)


# The helpers


@pytest.fixture(autouse=True)
def names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_held", dict(caches._held))


def test_results_with_tensors_are_held_to_their_bytes() -> None:
    made = []

    @caches.memo_by_bytes("test.tensors", 5, 1000)
    def zeros(n: int, *_: object) -> tuple[torch.Tensor, None] | None:
        made.append(n)
        return (torch.zeros(n, dtype=torch.uint8), None) if n else None

    def held() -> caches.Cache:
        return next(cache for cache in caches.listed() if cache.name == "test.tensors")

    assert zeros(400) is zeros(400)
    zeros(500)
    assert made == [400, 500]
    zeros(300)  # the oldest goes
    assert held() == ("test.tensors", 2, 5, 1000)
    zeros(500), zeros(300)
    assert made == [400, 500, 300]
    assert len(zeros(5000)[0]) == 5000  # larger than all that may be: it stays alone, until the next
    assert held().entries == 1
    assert zeros(5000) is zeros(5000)
    assert zeros(0) is zeros(0) is None
    assert held().entries == 1
    for i in range(20):
        zeros(1, i)
    assert held().entries == 5
    caches.clear("test")
    assert held().entries == 0
    made.clear()
    zeros(900), zeros(90), zeros(900)
    assert made == [900, 90], "nothing is left of the bytes that were held before"


def test_nothing_is_answered_that_was_not_kept() -> None:
    """None is an answer too."""
    made = []

    @caches.memo_by_bytes("test.none", 5, 1000)
    def nothing(n: int) -> None:
        made.append(n)

    nothing(1), nothing(1)
    assert made == [1]


def test_the_layouts_of_a_gpu_are_counted() -> None:
    rows = (0, 1, torch.zeros(7, dtype=torch.int32), (torch.zeros(3, dtype=torch.int64), None))
    assert caches.bytes_of((frozenset("a"), rows, 1.0)) == 7 * 4 + 3 * 8
    found = {cache.name: cache for cache in caches.listed()}
    assert found["lens.goes"].most_bytes == gpu_plan._LAYOUT_BYTES
    assert found["lens.intervals"].most_bytes == gpu_plan._INTERVAL_BYTES


def test_a_table_lets_the_oldest_go() -> None:
    table: dict[int, int] = caches.held("test.table", {}, 3)
    for i in range(9):
        assert caches.put(table, i, -i, 3) == -i
    assert table == {6: -6, 7: -7, 8: -8}
    caches.put(table, 7, 0, 3)
    assert table[7] == 0
    assert len(table) <= 3
    caches.clear("test.table")
    assert table == {}


def test_what_was_used_last_is_remembered() -> None:
    made = []
    double = caches.memo("test.double", 2)(lambda n: made.append(n) or 2 * n)
    assert [double(n) for n in (1, 2, 1, 3, 1, 2)] == [2, 4, 2, 6, 2, 4]
    assert made == [1, 2, 3, 2]


# Nothing else

CONTAINERS = {
    *("dict", "list", "set", "OrderedDict", "defaultdict", "deque", "Counter", "ChainMap"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "local", "Queue", "SimpleQueue", "LRUCache", "TTLCache"),
}
CHANGES = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"),
    *("move_to_end", "appendleft", "popleft", "__setitem__"),
}
# Tables that are changed, and are no caches: what was declared, passes that are being tried, one loop for all widgets,
# torch's operators beside attention in graphs, and who hears of them.
ALLOWED = {
    "lens/statistics.py:STATISTICS",
    "lens/gpu/trial.py:_trying",
    "web/widget.py:_loop",
    "watching/intercept/traced.py:_library",
    "watching/intercept/traced.py:_hears",
}


def kept_by(path_and_source: dict[str, str]) -> set[str]:
    """Module-level containers that functions change (or written small, as what changes is), and memos of functools."""
    found, homes, imported = set(), {}, {}
    changed: dict[str, set[str]] = {}
    for file, source in path_and_source.items():
        module = ast.parse(source)
        for node in outside_functions(module):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and is_container(getattr(node, "value", None)):
                    homes[file, target.id] = not target.id.isupper() and target.id != "__all__"
        at_import = {id(node) for node in outside_functions(module)}
        decorators = {id(x) for node in ast.walk(module) for x in getattr(node, "decorator_list", ())}
        changed[file] = set()
        froms = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
        imported[file] = {(node.module, alias.name) for node in froms for alias in node.names}
        for node in ast.walk(module):
            name = None if id(node) in decorators else memo_of(node)
            if name:
                found.add(f"{file}:{name}")
            if id(node) not in at_import:
                changed[file] |= changes(node)
    for (file, name), small in homes.items():
        module = f"sightline.{file.removesuffix('.py').replace('/', '.')}"
        users = [file, *(user for user, names in imported.items() if (module, name) in names)]
        if small or any(name in changed[user] for user in users):
            found.add(f"{file}:{name}")
    return found


def outside_functions(node: ast.AST) -> list[ast.AST]:
    inner = [] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda) else [node]
    return inner + [x for child in ast.iter_child_nodes(node) if inner for x in outside_functions(child)]


def is_container(value: ast.AST | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in CONTAINERS


def memo_of(node: ast.AST) -> str | None:
    """The function that functools keeps the results of, or where it does."""
    if isinstance(node, ast.FunctionDef):
        for decorator in node.decorator_list:
            if ast.unparse(decorator).split("(")[0].split(".")[-1] in ("cache", "lru_cache"):
                return node.name
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "functools.cache",
        "functools.lru_cache",
        "lru_cache",
    ):
        return f"line {node.lineno}"
    return None


def changes(node: ast.AST) -> set[str]:
    """The names whose contents a piece of code changes."""
    found: list[ast.AST] = []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        found = [node.value]
    elif isinstance(node, ast.AugAssign):
        found = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        found = [node.func.value]
    return {x.id for x in found if isinstance(x, ast.Name)}


@pytest.mark.parametrize(
    "source, found",
    [
        ("_known = {}", {"_known"}),
        ("_known: dict[int, int] = {}", {"_known"}),
        ("_kept = OrderedDict()", {"_kept"}),
        ("_kept = weakref.WeakKeyDictionary()", {"_kept"}),
        ("if True:\n    _pools = [x for x in ()]", {"_pools"}),
        ("TABLE = {}\ndef f():\n    TABLE[3] = 4", {"TABLE"}),
        ("TABLE = {}\ndef f():\n    global TABLE\n    TABLE |= {3: 4}", {"TABLE"}),
        ("TABLE = {}\nTABLE |= {3: 4}\nTABLE.update(a=3)", set()),
        ("TABLE = []\ndef f():\n    TABLE.append(3)", {"TABLE"}),
        ("@functools.cache\ndef f(): ...", {"f"}),
        ("@lru_cache(maxsize=3)\ndef f(): ...", {"f"}),
        ("_local = threading.local()", {"_local"}),
        ("f = functools.lru_cache(64)(g)", {"line 1"}),
        ("TABLE = {1: 2}\nKEYS = [1, 2]\n__all__ = ['x']\nx = TABLE[1]", set()),
        ("_known = caches.held('a.b', {}, 3)\n@caches.memo('a.c')\ndef f(): ...", set()),
        ("def f():\n    known = {}\n    known[3] = 4", set()),
        ("class A:\n    def f(self):\n        self.known = {}", set()),
        ("Alias = dict[str, int]\nclass A:\n    @cached_property\n    def f(self): ...", set()),
    ],
)
def test_the_check_for_other_containers_itself(source: str, found: set[str]) -> None:
    assert kept_by({"lens/x.py": source}) == {f"lens/x.py:{name}" for name in found}


def test_a_table_that_another_module_changes_is_found() -> None:
    other = "from sightline.lens.x import TABLE\ndef f():\n    TABLE['a'] = 3"
    assert kept_by({"lens/x.py": "TABLE = {}", "web/y.py": other}) == {"lens/x.py:TABLE"}


def test_nothing_is_kept_between_calls_that_has_no_name() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    assert kept_by(sources) == ALLOWED, "make it by sightline.caches, so that it has a name, a bound and an end"
