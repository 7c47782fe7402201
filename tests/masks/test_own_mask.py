"""A mask that is not one of ours, in one class with one method, works everywhere and means what its table means."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.errors import InputError, SightFileError
from sightline.explore.run import Run
from sightline.lens.select import select
from sightline.masks import MIXED
from sightline.masks.base import Selected
from sightline.watching import watch

BATCH, HEADS, QUERIES, KEYS, DIM = (2, 3), 4, 37, 45, 8


class Dilated(sl.Mask):
    """Every `step`-th key before the query, `width` of them; each member of the batch and each head has its step."""

    def __init__(self, step: torch.Tensor, width: int) -> None:
        self.step, self.width = step, width  # [*batch, heads]

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device | str) -> torch.Tensor:
        place = torch.arange(rows.start, rows.stop, device=device) + keys - queries
        gap = place[:, None] - torch.arange(columns.start, columns.stop, device=device)
        step = self.step.to(device)[..., None, None]
        return (gap >= 0) & (gap % step == 0) & (gap < step * self.width)


def steps(*shape: int) -> torch.Tensor:
    return torch.randint(1, 6, shape, generator=torch.Generator().manual_seed(3))


def by_hand(step: torch.Tensor, width: int, queries: int = QUERIES, keys: int = KEYS) -> torch.Tensor:
    """The table, cell by cell."""
    table = torch.zeros(*step.shape, queries, keys, dtype=torch.bool)
    for place in np.ndindex(*step.shape):
        for i in range(queries):
            for n in range(width):
                j = i + keys - queries - n * int(step[place])
                if j >= 0:
                    table[(*place, i, j)] = True
    return table


STEP = steps(*BATCH, HEADS)
TABLE = by_hand(STEP, 5)
REAL = torch.rand(*BATCH, KEYS, generator=torch.Generator().manual_seed(4)) > 0.3
REAL[..., :4] = False  # padding on the left
CAUSAL = sl.causal().to_dense(QUERIES, KEYS)

MASKS = {
    "alone": (lambda: Dilated(STEP, 5), TABLE),
    "and padding": (lambda: Dilated(STEP, 5) & sl.padding(REAL), TABLE & REAL[..., None, None, :]),
    "or a window": (lambda: sl.window(2) | Dilated(STEP, 5), TABLE | sl.window(2).to_dense(QUERIES, KEYS)),
    "not": (lambda: sl.causal() & ~Dilated(STEP, 5), ~TABLE & CAUSAL),
}
EACH = pytest.mark.parametrize("name", MASKS)


def case(name: str) -> tuple[sl.Mask, torch.Tensor]:
    make, table = MASKS[name]
    return make(), table.expand(*BATCH, HEADS, QUERIES, KEYS)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    q = torch.randn(*BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    k, v = (torch.randn(*BATCH, 2, KEYS, DIM, dtype=torch.float64) for _ in "kv")
    return q, k, v


def weights(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    scores = q @ k.repeat_interleave(q.shape[-3] // k.shape[-3], -3).mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~table, -torch.inf).softmax(-1).nan_to_num(0.0)


def whole(sight: sl.Sight) -> torch.Tensor:
    return sight.tile(slice(None), slice(None))


@EACH
@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_attention(name: str, backend: str) -> None:
    (q, k, v), (mask, table) = inputs(), case(name)
    want = weights(q, k, table) @ v.repeat_interleave(2, -3)
    torch.testing.assert_close(sl.attention(q, k, v, mask=mask, backend=backend), want)
    assert sl.which_backend(q, k, v, mask=mask).backend == "streaming"


@EACH
def test_gradients(name: str) -> None:
    mask, table = case(name)
    grads = []
    for one in (mask, sl.dense(table)):
        given = [x.requires_grad_() for x in inputs()]
        sl.attention(*given, mask=one).square().sum().backward()
        grads.append([x.grad for x in given])
    torch.testing.assert_close(*grads)


@EACH
def test_the_lens(name: str) -> None:
    (q, k, v), (mask, table) = inputs(), case(name)
    want = weights(q, k, table)
    out, observed = sl.observe(q, k, v, mask=mask)
    torch.testing.assert_close(out, want @ v.repeat_interleave(2, -3))
    for sight in (observed, sl.look(q, k, mask=mask, stats=("entropy", "received", sl.Top(3)))):
        torch.testing.assert_close(whole(sight), want)
        torch.testing.assert_close(sight.received(), want.sum(-2))
        torch.testing.assert_close(sight.entropy, -torch.xlogy(want, want).sum(-1))
        torch.testing.assert_close(sight.top(3).weights, want.topk(3).values)
        mean = sight.picture(cell=(8, 16), visible_only=True)[..., 1, 1]
        cells = table[..., 8:16, 16:32].sum((-2, -1))
        torch.testing.assert_close(mean, want[..., 8:16, 16:32].sum((-2, -1)) / cells, equal_nan=True)


@EACH
def test_it_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    (q, k, _), (mask, table) = inputs(), case(name)
    sl.look(q, k, mask=mask).save(tmp_path / "x.sight")
    loaded = sl.Sight.load(tmp_path / "x.sight")
    torch.testing.assert_close(whole(loaded), weights(q, k, table))
    assert repr(mask) in repr(loaded)
    assert repr(Dilated(STEP, 5)) == "Dilated(step=<2 x 3 x 4>, width=5)"


@EACH
@pytest.mark.parametrize("batch, heads", [(4, [2]), (5, None), (None, [3, 0]), (0, [1, 1, 2])])
def test_some_of_it_is_selected(name: str, batch: int | None, heads: list[int] | None, tmp_path: Path) -> None:
    (q, k, _), (mask, table) = inputs(), case(name)
    want = weights(q, k, table)
    want = want if batch is None else want.flatten(0, 1)[batch]
    want = want if heads is None else want[..., heads, :, :]
    part = sl.look(q, k, mask=mask, stats=("entropy", sl.Top(2))).select(batch, heads)
    part.save(tmp_path / "part.sight")
    for sight in (part, sl.Sight.load(tmp_path / "part.sight")):
        torch.testing.assert_close(whole(sight), want)
        torch.testing.assert_close(sight.received(), want.sum(-2))
        torch.testing.assert_close(sight.entropy, -torch.xlogy(want, want).sum(-1))


@EACH
def test_single_cells_one_batch_axis_and_copies(name: str) -> None:
    mask, table = case(name)
    table = table.flatten(0, 1)
    b, h = torch.arange(6).view(-1, 1, 1), torch.arange(HEADS).view(1, -1, 1)
    i = torch.arange(QUERIES)
    for j in (i + KEYS - QUERIES, torch.randint(0, KEYS, (6, 1, QUERIES))):
        rule = mask.mod(BATCH, QUERIES, KEYS, torch.device("cpu"))
        assert torch.equal(rule(b, h, i, j), table[b, h, i, j])
    flat = mask.flattened(BATCH)
    assert torch.equal(flat.to_dense(QUERIES, KEYS).expand(table.shape), table)
    flat.check((6,), HEADS, QUERIES, KEYS, torch.device("cpu"))
    rule = flat.mod((6,), QUERIES, KEYS, torch.device("cpu"))
    assert torch.equal(rule(b, h, i, i), table[b, h, i, i])
    assert not mask.compiles


class Attends(torch.nn.Module):
    def __init__(self, mask: sl.Mask) -> None:
        super().__init__()
        self.project, self.mask = torch.nn.Linear(DIM, 3 * HEADS * DIM, dtype=torch.float64), mask

    def qkv(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.project(x).unflatten(-1, (3, HEADS, DIM)).movedim(-3, 0).transpose(-2, -3).unbind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sl.attention(*self.qkv(x), mask=self.mask).mean(-3)


@pytest.mark.parametrize("heads", [None, [0, 2]])
@pytest.mark.parametrize("batch", [(3,), (2, 3), ()])
def test_a_model_with_it_is_watched_saved_and_explored(
    batch: tuple[int, ...], heads: list[int] | None, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    step = steps(*batch, HEADS)
    table = by_hand(step, 4, KEYS, KEYS)
    model, x = Attends(Dilated(step.clone(), 4)), torch.randn(*batch, KEYS, DIM, dtype=torch.float64)
    with torch.no_grad(), watch(model, keep_qk=True, heads=heads) as seen:
        model(x)
    model.mask.step.fill_(1)  # the account is of what was
    q, k, _ = model.qkv(x)
    want = weights(q, k, table).detach().reshape(-1, HEADS, KEYS, KEYS)[:, heads or slice(None)]
    folder = seen.save(tmp_path / "run")
    for account in (seen, sl.load(folder)):
        torch.testing.assert_close(whole(account[0]), want)
        torch.testing.assert_close(account[0].received(), want.sum(-2), check_dtype=False)
        previous = want.diagonal(-1, -2, -1)
        found = account._layers[account.layers[0]].rows("previous")
        torch.testing.assert_close(found[..., 1:], previous, check_dtype=False)
        for member in range(len(want)):
            run = Run("x", account, [str(n) for n in range(KEYS)], batch=member)
            view = run.view(0, 1)
            shown = torch.from_numpy(view.tile(slice(0, KEYS), slice(0, KEYS)))
            hidden = ~table.reshape(-1, HEADS, KEYS, KEYS)[member, (heads or range(HEADS))[1]]
            torch.testing.assert_close(shown.isnan(), hidden)
            torch.testing.assert_close(shown.nan_to_num(0.0).double(), want[member, 1], atol=1e-6, rtol=1e-5)


def test_modules_take_it() -> None:
    torch.manual_seed(2)
    layer = sl.nn.MultiHeadAttention(16, HEADS).double().eval()
    x, step = torch.randn(3, KEYS, 16, dtype=torch.float64), steps(3, HEADS)
    table = by_hand(step, 4, KEYS, KEYS)
    with sl.nn.observing(layer) as seen:
        out = layer(x, mask=Dilated(step, 4))
    torch.testing.assert_close(out, layer(x, mask=table))
    (sight,) = seen.values() if hasattr(seen, "values") else (seen[0],)
    assert torch.equal(whole(sight) > 0, table)


def test_one_that_does_not_fit_is_refused_before_any_work() -> None:
    q, k, v = inputs()
    with pytest.raises(InputError, match="the mask does not fit the call") as caught:
        sl.attention(q, k, v, mask=Dilated(steps(5), 3))
    assert "got: one of (5, 1, 1) for a single cell" in str(caught.value)
    with pytest.raises(InputError, match="the mask does not fit the call"):
        sl.attention(q, k, v, mask=sl.causal() & ~Dilated(steps(5), 3))


def test_it_must_be_imported_before_it_is_loaded(tmp_path: Path) -> None:
    q, k, _ = inputs()
    sl.look(q, k, mask=Dilated(STEP, 5)).save(tmp_path / "x.sight")
    code = f"""
        import sightline as sl
        try:
            sl.Sight.load({str(tmp_path / "x.sight")!r})
        except sl.errors.SightFileError as error:
            print(error)
    """
    path = {"PYTHONPATH": str(Path(sl.__file__).parent.parent)}
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(run, env=os.environ | path, capture_output=True, text=True, check=True)
    assert "the file holds a mask of a class that is not known here" in done.stdout
    assert f"import {__name__}, where class Dilated is defined" in done.stdout


def test_two_classes_of_one_name_are_told_apart_by_their_module(tmp_path: Path) -> None:
    def another(module: str) -> type[sl.Mask]:
        body = {
            "tile": lambda self, rows, columns, queries, keys, device: sl.causal().tile(
                rows, columns, queries, keys, device
            )
        }
        return type("Twice", (sl.Mask,), body | {"__module__": module})

    first, second = another("one.module"), another("other.module")
    q, k, _ = inputs()
    for kind in (first, second):
        sl.look(q, k, mask=kind()).save(tmp_path / "x.sight")
        assert type(sl.Sight.load(tmp_path / "x.sight").call.mask) is kind
    del sl.Mask.known["Twice"]["other.module.Twice"], sl.Mask.known["Twice"]["one.module.Twice"]
    with pytest.raises(SightFileError, match="not known here"):
        sl.Sight.load(tmp_path / "x.sight")


def test_a_mask_made_of_others_is_taken_along_with_them(tmp_path: Path) -> None:
    class Either(sl.Mask):
        """One of several, whichever allows a cell."""

        def __init__(self, *masks: sl.Mask) -> None:
            self.masks, self.names = list(masks), {"n": len(masks), "weight": float("inf"), 3: (None, True)}

        def tile(self, rows, columns, queries, keys, device):
            return sum(mask.tile(rows, columns, queries, keys, device).int() for mask in self.masks) > 0

    (q, k, _), table = inputs(), TABLE | CAUSAL
    mask = Either(Dilated(STEP.clone(), 5), sl.causal())
    assert next(iter(mask.tensors())).shape == STEP.shape
    copy = mask.to("cpu", copy=True)
    mask.masks[0].step.fill_(1)
    sight = sl.look(q, k, mask=copy)
    torch.testing.assert_close(whole(sight), weights(q, k, table))
    sight.save(tmp_path / "x.sight")
    loaded = sl.Sight.load(tmp_path / "x.sight")
    torch.testing.assert_close(whole(loaded), weights(q, k, table))
    assert loaded.call.mask.names == copy.names
    with pytest.raises(InputError, match="the mask does not fit the call"):
        sl.attention(q, k, k, mask=Either(sl.dense(torch.ones(3, 3, dtype=torch.bool))))


def test_tiles_are_asked_for_as_they_are_by_default() -> None:
    mask = Dilated(STEP, 5)
    edges = np.array([0, 10, QUERIES])
    assert (mask.kinds(edges, edges, QUERIES, KEYS) == MIXED).all()
    assert mask.intervals(QUERIES, KEYS, torch.device("cpu")) is None
    assert isinstance(mask.select(heads=[1]), Selected)
    call = sl.look(*inputs()[:2], mask=mask).call
    part, _ = select(call, torch.zeros(*BATCH, HEADS, QUERIES), (1, 2), [3])
    assert torch.equal(part.mask.to_dense(QUERIES, KEYS).squeeze(), TABLE[1, 2, 3])
