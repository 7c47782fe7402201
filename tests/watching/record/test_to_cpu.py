from __future__ import annotations

from pathlib import Path

import torch

from sightline.watching.record import to_cpu
from sightline.watching.record.to_cpu import Packed, Shipper


def pieces_of_memory() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_steps_of_a_generation_take_no_memory_of_their_own():
    """The system gives a process some 65,000 pieces: thirty layers of two thousand steps would be as many."""
    shipper, before = Shipper(), pieces_of_memory()
    kept = [shipper.send({"entropy": torch.ones(1, 9, 1), "received": torch.ones(1, 9, 300)}) for _ in range(2000)]
    assert pieces_of_memory() - before < 100
    assert all(float(part["entropy"].sum()) == 9 for part in kept)


def test_large_layers_do_and_the_heap_is_trimmed_now_and_then(monkeypatch):
    trimmed = []
    monkeypatch.setattr(to_cpu, "trim", lambda: trimmed.append(1))
    shipper, large = Shipper(), torch.ones(300, 1000)
    for _ in range(2 * to_cpu._TRIM):
        small = torch.arange(5)
        found = shipper.send({"overview": large, "lse": small})
        assert found["overview"] is large
        assert found["lse"].tolist() == [0, 1, 2, 3, 4]
        assert found["lse"].data_ptr() != small.data_ptr()
        shipper.send({"lse": small})
    assert len(trimmed) == 2


def test_layers_in_one_piece_of_memory():
    shared = torch.tensor([True, False, True])
    layers = [
        {
            "row": torch.randn(2, 3),
            "keys": torch.arange(5) + i,
            "q": torch.randn(3, 4).bfloat16().T,
            "real": shared,
            "none": torch.zeros(0, 4),
        }
        for i in range(3)
    ]
    packed = Packed(layers)
    assert packed.bytes.nbytes == 3 * (24 + 40 + 24) + 3
    packed.arriving = {"": packed.bytes}
    for i, layer in enumerate(layers):
        found = packed.of(i).result()
        assert list(found) == list(layer)
        for name, x in layer.items():
            assert found[name].dtype == x.dtype
            assert torch.equal(found[name], x)
