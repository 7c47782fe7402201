"""What takes the place of a head's output, where several edits meet in one layer."""

from __future__ import annotations

import itertools

import torch

import edit_cases
import sightline as sl


def outputs(decoder, make, *pieces):
    """What the heads of the first layer gave, edited, the pieces of a text one after the other."""
    with torch.no_grad(), sl.edit(decoder) as edits, sl.watch(decoder, layers=0, keep_output=True) as seen:
        make(edits)
        cache = decoder.new_cache()
        for piece in pieces:
            decoder(piece, cache=cache)
    return seen.output(0)


def test_a_mean_is_of_what_the_head_gave_whatever_else_is_ablated():
    torch.manual_seed(0)
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(2, 8, 32)
    prompt, step = x[:, :6], x[:, 6:7]
    given = outputs(decoder, lambda _: None, prompt, step)[:, 1]
    mean = given[:, :6].mean(1, keepdim=True)
    changes = [
        lambda edits: edits.ablate("zero", heads=[(0, 1)], queries=0),
        lambda edits: edits.ablate("mean", heads=[(0, 1)], queries=2),
        lambda edits: edits.ablate("mean", heads=[(0, 1)], queries=slice(5, None)),
        lambda edits: edits.ablate("mean", heads=[(0, 3)], queries=1),
    ]
    expected = given.clone()
    expected[:, 0], expected[:, [2, 5, 6]] = 0.0, mean
    for order in itertools.permutations(changes):

        def make(edits, order=order):
            for change in order:
                change(edits)

        torch.testing.assert_close(outputs(decoder, make, prompt, step)[:, 1], expected)
