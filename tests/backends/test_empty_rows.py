from __future__ import annotations

import torch

from sightline.backends import empty_rows
from sightline.backends.empty_rows import blind_rows


def test_rows_are_found_in_tables_of_booleans_and_of_numbers():
    table = torch.ones(2, 3, 4, dtype=torch.bool)
    table[1, 2] = False
    assert blind_rows(table).nonzero().tolist() == [[1, 2]]
    added = torch.zeros(3, 4).masked_fill(~table[1], -torch.inf)
    assert blind_rows(added).nonzero().tolist() == [[2]]


def test_a_table_is_asked_once_until_it_changes(monkeypatch):
    asked = []
    find = empty_rows.find
    monkeypatch.setattr(empty_rows, "find", lambda table: asked.append(1) or find(table))
    table = torch.ones(3, 3, dtype=torch.bool)
    assert blind_rows(table) is blind_rows(table) is None
    assert len(asked) == 1
    table[1] = False
    assert blind_rows(table).tolist() == [False, True, False]
    assert len(asked) == 2


def test_another_table_in_the_same_place_is_another():
    for n in range(40):
        table = torch.ones(3, 3, dtype=torch.bool)
        table[1] = bool(n % 2)
        assert (blind_rows(table) is None) == bool(n % 2)
    assert len(empty_rows._asked) <= empty_rows._MOST


def test_in_inference_mode_nothing_is_remembered():
    with torch.inference_mode():
        table = torch.ones(3, 3, dtype=torch.bool)
        assert not blind_rows(table).any()
        table[1] = False
        assert blind_rows(table).tolist() == [False, True, False]
