"""Edits of one attention call in any precision, beside the same in float64: for tests with and without a GPU."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import sightline as sl
from sightline.editing import pieces

HEADS, KV_HEADS, DIM = 4, 2, 64
EDITS = {
    "a rectangle": [("cut", {"queries": slice(-40, None), "keys": slice(5, 31), "heads": [1, 2]})],
    "full height": [("cut", {"keys": slice(3, 50)})],
    "scattered": [("cut", {"keys": [0, 7, 8], "heads": [0]}), ("cut", {"keys": slice(20, 40), "examples": [1]})],
    "by a rule": [("cut", {"mask": sl.window(9), "heads": [3]})],
    "boost": [("boost", {"factor": 4.0, "keys": slice(2, 9)})],
    "temperature": [("temperature", {"t": 2.5, "heads": [0, 3], "queries": slice(9, None)})],
    "uniform": [("force", {"pattern": "uniform", "heads": [2]})],
    "combined": [
        ("temperature", {"t": 0.5, "heads": [1]}),
        ("boost", {"factor": 2.0, "keys": slice(0, 5), "heads": [1, 2]}),
        ("cut", {"keys": slice(10, 20), "heads": [2]}),
        ("ablate", {"heads": [0]}),
        ("scale", {"factor": 3.0, "heads": [3], "queries": slice(-7, None)}),
    ],
}


class Attends(torch.nn.Module):
    """One causal call of torch's attention over grouped heads."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def chosen(where, length):
    """`[batch, heads, queries, 1]`: which rows an edit is about."""
    marks = []
    for name, size in (("examples", 2), ("heads", HEADS), ("queries", length)):
        one = torch.zeros(size, dtype=torch.bool)
        one[where.get(name, slice(None))] = True
        marks.append(one)
    return marks[0].view(-1, 1, 1, 1) & marks[1].view(1, -1, 1, 1) & marks[2].view(1, 1, -1, 1)


def exact(q, k, v, edits):
    """The edited call in float64, all of its map."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    length = q.shape[2]
    scores = q @ k.mT / math.sqrt(DIM)
    visible = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().expand(scores.shape).clone()
    here = [(kind, o, chosen(o, length).to(q.device)) for kind, o in edits]
    columns = []
    for _, o, _ in here:
        keys = torch.zeros(length, dtype=torch.bool, device=q.device)
        keys[o.get("keys", slice(None))] = True
        columns.append(keys)
    for kind, o, rows in here:
        if kind == "temperature":
            scores = torch.where(rows, scores / o["t"], scores)
    for (kind, o, rows), keys in zip(here, columns):
        if kind == "boost":
            scores = scores + math.log(o["factor"]) * (rows & keys)
        if kind == "cut":
            gone = rows & keys
            if "mask" in o:
                gone = gone & o["mask"].to_dense(length, length, device=q.device)
            visible &= ~gone
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    for kind, _, rows in here:
        if kind == "force":
            even = visible.double()
            weights = torch.where(rows, even / even.sum(-1, keepdim=True).clamp_min(1.0), weights)
    out = weights @ v
    for kind, o, rows in here:
        if kind in ("ablate", "scale"):
            out = torch.where(rows, out * o.get("factor", 0.0), out)
    return out, weights


def check(name, length, device, dtype, watched=False):
    """The edited call, and its gradients, at most twice as far from float64 as torch's own call.

    That is the unedited one; where little is left to a row, one with the same cut in a table.
    """
    torch.manual_seed(length)
    shapes = ((HEADS, length), (KV_HEADS, length), (KV_HEADS, length))
    q, k, v = (torch.randn(2, h, n, DIM, device=device, dtype=dtype) for h, n in shapes)
    edits, model = EDITS[name], Attends()
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    before = pieces.SMALL, pieces.BYTES
    pieces.SMALL, pieces.BYTES = 0, length * DIM * 4 * 3  # without gradients three heads at a time
    try:
        with torch.no_grad(), sl.edit(model) as block:
            for kind, options in edits:
                getattr(block, kind)(**options)
            alone = model(q, k, v)
        with sl.edit(model) as block, sl.watch(model, keep_qk=True) as seen:
            for kind, options in edits:
                getattr(block, kind)(**options)
            out = model(*inputs)
            g = torch.randn_like(out)
            grads = torch.autograd.grad(out, inputs, g)
    finally:
        pieces.SMALL, pieces.BYTES = before
    wide, plain = ([t.detach().to(kind).requires_grad_() for t in (q, k, v)] for kind in (torch.float64, dtype))
    truth, weights = exact(*wide, edits)
    true_grads = torch.autograd.grad(truth, wide, g.double())
    base, base_truth = model(*plain), exact(*wide, [])[0]
    if name == "full height":
        table = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        table[:, 3:50] = False
        base = F.scaled_dot_product_attention(*plain, attn_mask=table, enable_gqa=True)
        base_truth = exact(*wide, edits)[0]
    base_grads = torch.autograd.grad(base, plain, g)
    base_true = torch.autograd.grad(base_truth, wide, g.double())
    scale = 3.0 if name == "combined" else 1.0  # it multiplies outputs
    for found in (out, alone):
        assert apart(found, truth) <= 2 * scale * apart(base, base_truth) + 1e-6
    for got, want, theirs, true in zip(grads, true_grads, base_grads, base_true):
        assert apart(got, want) <= 2 * scale * apart(theirs, true) + 1e-5
    if watched:
        whole = slice(0, length)
        near = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-5
        assert apart(seen[0].tile(whole, whole), weights) <= near


def apart(got, want):
    assert got.isfinite().all()
    return (got.to(want.device).double() - want).abs().max().item()  # a watch keeps what it saw on the CPU
