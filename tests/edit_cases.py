"""Edits done again, cell by cell, on dense maps in float64: what every edited model is compared with."""

from __future__ import annotations

import copy
from types import FunctionType

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import sightline as sl
import watch_cases
from sightline.masks import as_mask

LEAST = {dtype: torch.finfo(dtype).min / 2 for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


def columns(chosen, end, total):
    """The columns that an index, a list or a slice means, of `total` there are."""
    if chosen is None:
        return set(range(total))
    if isinstance(chosen, slice):
        if chosen.stop is None:
            start = chosen.start or 0
            return set(range(max(start + end, 0) if start < 0 else start, total, chosen.step or 1))
        return set(range(*chosen.indices(end)))
    numbers = [chosen] if isinstance(chosen, int) else chosen
    return {n % end if n < 0 else n for n in numbers}


class Reference:
    """Edits as lists of (kind, options); each attention call of a model is done by hand."""

    def __init__(self, edits, prompt=None):
        self.edits, self.prompt = edits, prompt
        self.order = {}
        self.at = 0

    def attend(self, who, q, k, v, visible, scale, bias=None, softcap=None, sinks=None, real=None, cross=False):
        """q `[batch, heads, queries, dim]`, visible `[batch, heads, queries, keys]`; all in float64."""
        index = self.order.setdefault(who, len(self.order))
        batch, heads, queries, _ = q.shape
        groups = heads // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        keys = k.shape[2]
        first = self.at if cross else keys - queries
        if not cross:
            self.at = first
        here = [e for e in self.edits if self.concerns(e, index)]
        query_end = self.prompt or first + queries
        key_end = keys if cross else (self.prompt or keys)

        def rows(edit):
            _, o = edit
            for b in range(batch):
                for h in range(heads):
                    for i in range(queries):
                        ok = o.get("examples") is None or b in columns(o["examples"], batch, batch)
                        ok &= h in self.heads(edit, index, heads)
                        if ok and (first + i) in columns(o.get("queries"), query_end, first + queries):
                            yield b, h, i

        q, k, v = q.clone(), k.clone(), v.clone()
        for kind, o in here:
            if kind == "patch" and o["what"] in ("queries", "keys", "values"):
                target = {"queries": q, "keys": k, "values": v}[o["what"]]
                for b, h, i in self.patched(o, (kind, o), index, batch, heads, target.shape[2]):
                    source = o["there"][index][{"queries": "q", "keys": "k", "values": "v"}[o["what"]]]
                    target[b, h, i] = source[b, h, o["positions"].get(i, i) if o["positions"] else i]
        s = (q @ k.mT) * scale
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias
        sink = torch.full((batch, heads, queries), -torch.inf, dtype=s.dtype)
        if sinks is not None:
            sink = sinks.view(1, heads, 1).expand(batch, heads, queries).clone()
        visible = visible.expand(s.shape).clone()
        lost = torch.zeros_like(visible)
        for kind, o in here:
            if kind == "temperature":
                for at in rows((kind, o)):
                    s[at] = s[at] / o["t"]
                    sink[at] = sink[at] / o["t"]
        for kind, o in here:
            if kind == "boost":
                for at in rows((kind, o)):
                    for j in columns(o.get("keys"), key_end, keys):
                        s[at][j] += torch.log(torch.tensor(o["factor"], dtype=s.dtype))
        for kind, o in here:
            if kind == "cut":
                for b, h, i in rows((kind, o)):
                    for j in columns(o.get("keys"), key_end, keys):
                        rule = o.get("mask")
                        total = first + queries if cross else keys
                        if rule is not None:
                            table = as_mask(rule).to_dense(total, keys)
                            table = table.expand(batch, heads, total, keys)
                            if not table[b, h, first + i, j]:
                                continue
                        (visible if o.get("renormalize", True) else lost)[b, h, i, j] = not o.get("renormalize", True)
        s = s.masked_fill(~visible, -torch.inf)
        top = torch.maximum(s.amax(-1), sink)
        top = top.masked_fill(top == -torch.inf, 0.0)
        shares = (s - top[..., None]).exp()
        total = shares.sum(-1) + (sink - top).exp()
        p = shares / total.masked_fill(total == 0, 1.0)[..., None]
        p = p.masked_fill(lost, 0.0)
        left = visible & ~lost
        for kind, o in here:
            if kind == "force":
                for b, h, i in rows((kind, o)):
                    seen = left[b, h, i].nonzero().flatten().tolist()
                    pos = first + i
                    wanted = {
                        "uniform": seen,
                        "first": seen[:1],
                        "previous": [j for j in seen if j == pos - 1],
                        "itself": [j for j in seen if j == pos],
                    }[o["pattern"]]
                    p[b, h, i] = 0
                    for j in wanted:
                        p[b, h, i, j] = 1 / len(wanted)
            if kind == "patch" and o["what"] == "pattern":
                for b, h, i in self.patched(o, (kind, o), index, batch, heads, queries):
                    source = o["there"][index]["p"][b, h]
                    if o["positions"] is None:
                        p[b, h, i] = source[i]
                        continue
                    p[b, h, i] = 0
                    for a, c in o["positions"].items():
                        p[b, h, i, a] = source[o["positions"][i], c]
                    p[b, h, i] *= source[o["positions"][i]].sum() / p[b, h, i].sum().clamp_min(1e-300)
        out = p @ v
        if real is None:
            real = torch.ones(batch, queries, dtype=torch.bool)
        for wanted in ("patch", "ablate", "scale"):
            for kind, o in here:
                if kind != wanted or (kind == "patch" and o["what"] != "output"):
                    continue
                before = out.clone()
                if kind == "patch":
                    for b, h, i in self.patched(o, (kind, o), index, batch, heads, queries):
                        out[b, h, i] = o["there"][index]["o"][b, h, o["positions"][i] if o["positions"] else i]
                    continue
                for b, h, i in rows((kind, o)):
                    if kind == "scale":
                        out[b, h, i] = before[b, h, i] * o["factor"]
                    elif o["by"] == "zero":
                        out[b, h, i] = 0
                    elif o["by"] == "mean":
                        out[b, h, i] = before[b, h][real[b]].mean(0)
                    else:
                        out[b, h, i] = o["by"].double()[h] if o["by"].dim() == 2 else o["by"].double()
        self.last = {"q": q, "k": k, "v": v, "p": p, "o": out}
        self.record(index)
        return out

    def record(self, index):
        if not hasattr(self, "seen"):
            self.seen = {}
        self.seen[index] = self.last

    def concerns(self, edit, index):
        _, o = edit
        if o.get("heads") and isinstance(o["heads"][0], tuple):
            return any(layer == index for layer, _ in o["heads"])
        return o.get("layers") is None or index in o["layers"]

    def heads(self, edit, index, count):
        _, o = edit
        heads = o.get("heads")
        if heads and isinstance(heads[0], tuple):
            return {head for layer, head in heads if layer == index}
        return set(range(count)) if heads is None else set(heads)

    def patched(self, o, edit, index, batch, heads, length):
        for b in range(batch):
            for h in self.heads(edit, index, heads):
                for i in range(length):
                    if (o.get("examples") is None or b in o["examples"]) and (
                        not o["positions"] or i in o["positions"]
                    ):
                        yield b, h, i


def transformers_reference(family, model, edits, prompt=None, real=None):
    """The same model in float64 on an attention function that edits by hand; and who does it."""
    t = watch_cases.classes()
    reference = Reference(edits, prompt)

    def forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
        keys = key.shape[2]
        visible = torch.ones(1, 1, query.shape[2], keys, dtype=torch.bool)
        bias = more.get("position_bias")
        if attention_mask is not None:
            table = attention_mask[..., :keys]
            visible = table > LEAST[table.dtype]
            bias = table.masked_fill(~visible, 0) if bias is None else bias + table.masked_fill(~visible, 0)
        marks = real if real is not None and real.shape[1] == query.shape[2] and id(module) not in cross else None
        out = reference.attend(
            module,
            query.double(),
            key.double(),
            value.double(),
            visible,
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            bias=bias,
            softcap=more.get("softcap"),
            sinks=more.get("s_aux"),
            real=marks,
            cross=id(module) in cross,
        )
        return out.transpose(1, 2).contiguous().to(query.dtype), None

    t.AttentionInterface.register("edited_by_hand", forward)
    t.AttentionMaskInterface.register("edited_by_hand", t.masking_utils.eager_mask)
    twin = copy.deepcopy(model)
    if family != "gpt-oss":  # torch has no grouped products of its experts in float64
        twin = twin.double()
    cross = {id(m) for n, m in twin.named_modules() if n.endswith(("encoder_attn", "EncDecAttention"))}
    twin.set_attn_implementation("edited_by_hand")
    return twin, reference


class ByHand(TorchFunctionMode):
    """Any model of torch's or Sightline's functions, its attention done by hand."""

    def __init__(self, reference):
        super().__init__()
        self.reference, self.calls = reference, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            plain = FunctionType(func.__code__, func.__globals__ | {"has_torch_function": lambda _: False})
            plain.__defaults__ = func.__defaults__
            with self:
                return plain(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            q, k, v, table = (*args, *([None] * (4 - len(args))))[:4]
            table = kwargs.get("attn_mask", table)
            visible = torch.ones(1, 1, q.shape[-2], k.shape[-2], dtype=torch.bool)
            if kwargs.get("is_causal"):
                visible = visible.tril()
            if table is not None:
                visible = visible & (table if table.dtype == torch.bool else table > LEAST[table.dtype])
            self.calls += 1
            return self.reference.attend(
                self.calls, q, k, v, visible, q.shape[-1] ** -0.5, cross=q.shape[-2] != k.shape[-2]
            )
        if func is sl.attention:
            q, k, v = args
            self.calls += 1
            queries = q.shape[2]
            mask = kwargs.get("mask")
            visible = torch.ones(1, 1, queries, k.shape[2], dtype=torch.bool)
            if mask is not None:
                visible = as_mask(mask).to_dense(queries, k.shape[2])
            scale = q.shape[-1] ** -0.5 if kwargs.get("scale") is None else kwargs["scale"]
            more = {"softcap": kwargs.get("softcap"), "sinks": kwargs.get("sinks")}
            return self.reference.attend(self.calls, q, k, v, visible, scale, **more)
        return func(*args, **kwargs)


def apply(edits, given):
    """The same edits for `sl.edit`."""
    for kind, options in given:
        options = {name: value for name, value in options.items() if name != "there"}
        getattr(edits, kind)(**options)


def small_decoder(**changes):
    torch.manual_seed(5)
    options = {"heads": 4, "layers": 2, "kv_heads": 2, "positions": sl.positions.Rotary(8), "mask": sl.window(5)}
    options |= changes
    model = sl.nn.Decoder(32, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


def torch_encoder():
    torch.manual_seed(2)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.1)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


def edited(model, make, *inputs):
    """What a model gives under the edits that a function makes."""
    with torch.no_grad(), sl.edit(model) as edits:
        make(edits)
        return model(*inputs)
