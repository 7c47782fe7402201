from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from sightline import errors
from sightline.lookup import KeyNotFoundError, exact

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
# A KeyError shows its text in another way, and an ImportError keeps parts of its own: here both are as the rest.
every_kind = pytest.mark.parametrize("kind", [*KINDS, KeyNotFoundError])


def what_it_says(error):
    return type(error), str(error), error.args, error.what, error.expected, error.got, error.hint


def test_the_tree_is_the_one_drawn():
    assert issubclass(errors.InputError, (errors.SightlineError, ValueError))
    assert issubclass(errors.InputTypeError, (errors.SightlineError, TypeError))
    assert issubclass(errors.BackendError, errors.InputError)
    assert issubclass(errors.TooLargeError, errors.InputError)
    assert issubclass(errors.SightFileError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)


def test_every_error_is_ours_and_is_drawn_in_the_tree():
    assert len(KINDS) >= 7
    for kind in KINDS:
        assert issubclass(kind, errors.SightlineError)
        assert kind.__name__ in errors.__doc__, f"{kind.__name__} is not in the tree"


def test_an_explanation_has_four_lines_in_order():
    text = errors.explain("it does not fit", expected=3, got=(1, 2), hint="look again")
    assert text.splitlines() == ["it does not fit", "  expected: 3", "  got: (1, 2)", "  try: look again"]


@pytest.mark.parametrize("builtin, ours", [(ValueError, errors.InputError), (TypeError, errors.InputTypeError)])
def test_our_errors_are_caught_as_the_usual_ones(builtin, ours):
    with pytest.raises(builtin, match="expected: a"):
        raise ours("no", expected="a", got="b", hint="c")


@every_kind
def test_an_error_composes_its_text_of_its_parts(kind):
    error = kind("it does not fit", expected=None, got=(1, 2), hint="look again")
    assert str(error) == errors.explain("it does not fit", expected=None, got=(1, 2), hint="look again")
    assert error.args == (str(error),)
    assert (error.what, error.expected, error.got, error.hint) == ("it does not fit", "None", "(1, 2)", "look again")


@every_kind
def test_an_error_may_be_a_message_alone(kind):
    error = kind("it does not fit")
    assert str(error) == "it does not fit"
    assert (error.what, error.expected, error.got, error.hint) == ("it does not fit", None, None, None)
    assert str(kind()) == ""


def test_parts_are_written_as_in_the_text_and_when_the_error_is_made():
    got = [1]
    error = errors.InputError("no", expected=torch.tensor(2.5), got=got, hint="c")
    got.append(2)
    assert (error.expected, error.got) == ("2.5", "[1]")
    assert str(error) == "no\n  expected: 2.5\n  got: [1]\n  try: c"


@pytest.mark.parametrize("parts", [{"expected": 1}, {"expected": 1, "got": 2}, {"expected": 1, "got": 2, "try": 3}])
def test_parts_come_together_or_not_at_all(parts):
    with pytest.raises(TypeError, match="argument"):
        errors.InputError("no", **parts)


@every_kind
@pytest.mark.parametrize("parts", [{}, {"expected": "a", "got": lambda: 0, "hint": "c"}], ids=["message", "parts"])
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(6))],
    ids=["copy", "deepcopy", *(f"pickle{p}" for p in range(6))],
)
def test_a_copy_says_the_same(kind, parts, again):
    error = kind("no", **parts)
    error.add_note("in layer 3")
    other = again(error)
    assert other is not error
    assert what_it_says(other) == what_it_says(error)
    assert other.__notes__ == ["in layer 3"]


def in_an_executor(context):
    with ProcessPoolExecutor(1, mp_context=context) as workers:
        workers.submit(exact, "c", ["a", "b"], [1, 2]).result()


def in_a_pool(context):
    with context.Pool(1) as workers:
        workers.apply(exact, ("c", ["a", "b"], [1, 2]))


@pytest.mark.parametrize("elsewhere", [in_an_executor, in_a_pool])
def test_an_error_comes_back_whole_from_another_process(elsewhere):
    with pytest.raises(KeyNotFoundError) as here:
        exact("c", ["a", "b"], [1, 2])
    with pytest.raises(KeyNotFoundError) as there:
        elsewhere(multiprocessing.get_context("spawn"))
    assert what_it_says(there.value) == what_it_says(here.value)
    assert there.value.got == "'c'"
