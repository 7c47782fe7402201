from __future__ import annotations

import inspect

import pytest

from sightline import errors


def test_the_tree_is_the_one_drawn():
    assert issubclass(errors.InputError, (errors.SightlineError, ValueError))
    assert issubclass(errors.InputTypeError, (errors.SightlineError, TypeError))
    assert issubclass(errors.BackendError, errors.InputError)
    assert issubclass(errors.TooLargeError, errors.InputError)
    assert issubclass(errors.SightFileError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)


def test_every_error_is_ours_and_is_drawn_in_the_tree():
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert len(classes) >= 7
    for kind in classes:
        assert issubclass(kind, errors.SightlineError)
        assert kind.__name__ in errors.__doc__, f"{kind.__name__} is not in the tree"


def test_an_explanation_has_four_lines_in_order():
    text = errors.explain("it does not fit", expected=3, got=(1, 2), hint="look again")
    assert text.splitlines() == ["it does not fit", "  expected: 3", "  got: (1, 2)", "  try: look again"]


@pytest.mark.parametrize("builtin, ours", [(ValueError, errors.InputError), (TypeError, errors.InputTypeError)])
def test_our_errors_are_caught_as_the_usual_ones(builtin, ours):
    with pytest.raises(builtin, match="expected: a"):
        raise ours(errors.explain("no", expected="a", got="b", hint="c"))
