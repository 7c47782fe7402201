from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sightline as sl
from sightline.backends.mask_cache import Kept


def counted():
    made = []

    def make(mask, size):
        made.append(str(mask))
        return mask.to_dense(size, size)

    return Kept(make, most=2), made


def test_equal_rules_are_made_once_and_each_size_for_itself():
    table, made = counted()
    assert table(sl.window(3), 5) is table(sl.window(3), 5)
    assert table(sl.window(3), 6).shape == (6, 6)
    assert made == ["window(3, 0)"] * 2


def test_a_mask_that_was_changed_in_place_is_made_anew():
    table, made = counted()
    lengths = torch.tensor([2])
    mask = sl.causal() & sl.padding(lengths)
    assert table(mask, 3).sum() == 5
    assert table(sl.causal() & mask.right, 3).sum() == 5, "another conjunction of the same two"
    assert len(made) == 1
    lengths.fill_(3)
    assert table(mask, 3).sum() == 6


def test_another_tensor_is_another_mask_though_the_first_is_gone():
    table, _ = counted()
    for n in (1, 2, 3, 1, 2):
        assert table(sl.padding(torch.tensor([n])), 3).sum() == 3 * n
        assert table(~sl.padding(torch.tensor([n])), 3).sum() == 9 - 3 * n


def test_only_the_last_few_are_kept():
    table, made = counted()
    for n in (1, 2, 3, 3, 2, 1):
        table(sl.window(n), 4)
    assert len(made) == 4
    assert len(table._results) == 2


def test_masks_that_do_not_count_their_changes_are_made_every_time():
    table, made = counted()
    with torch.inference_mode():
        mask = sl.documents(torch.tensor([0, 0, 1]))
        table(mask, 3), table(mask, 3)
    table(sl.dense(torch.ones(3, 3, dtype=torch.bool)), 3)
    assert len(made) == 3


def test_what_was_made_in_inference_mode_can_be_trained_with():
    table, _ = counted()
    with torch.inference_mode():
        table(sl.causal(), 3)
    x = torch.ones(3, 3, requires_grad=True)
    (x * table(sl.causal(), 3)).sum().backward()
    assert x.grad.sum() == 6


def test_fake_tensors_are_not_kept():
    table, _ = counted()
    with FakeTensorMode():
        table(sl.causal(), 3)
    assert type(table(sl.causal(), 3)) is torch.Tensor
