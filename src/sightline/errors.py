"""What goes wrong, in words: every error says what was expected, what came, and what to try.

```
SightlineError
├── InputError (ValueError)          a value, shape or name that cannot work
│   ├── BackendError                 a backend asked for by name that cannot do this call
│   └── TooLargeError                a result larger than memory allows, refused before it is made
├── InputTypeError (TypeError)       the wrong kind of thing, or the wrong dtype
├── SightFileError (ValueError)      a file that is damaged or was not written by Sightline
├── RankError (RuntimeError)         another process of a group that died, hangs or does something else
└── MissingExtraError (ImportError)  an optional package that is not installed
```
"""

from __future__ import annotations

from typing import Any, overload


class SightlineError(Exception):
    """The root of every error Sightline raises itself.

    Its parts are attributes too, as text, so that an error holds on to none of the objects it speaks of and can be
    copied and pickled whatever they are. All but `what` are None where there is only a message.

    >>> issubclass(InputError, SightlineError)
    True
    >>> error = InputError("no such thing", expected="a", got=3, hint="c")
    >>> error.what, error.expected, error.got, error.hint
    ('no such thing', 'a', '3', 'c')
    """

    what: str
    expected: str | None
    got: str | None
    hint: str | None

    @overload
    def __init__(self, what: str = "", /) -> None: ...

    @overload
    def __init__(self, what: str, /, *, expected: object, got: object, hint: str) -> None: ...

    def __init__(self, what: str = "", /, **parts: Any) -> None:
        said = {name: f"{part}" for name, part in parts.items()}
        # The one argument is the whole text: copies and pickles are made with it, and then get these attributes.
        super().__init__(explain(what, **said) if said else what)
        self.what = what
        self.expected = said.get("expected")
        self.got = said.get("got")
        self.hint = said.get("hint")


class InputError(SightlineError, ValueError):
    """A value, shape or name that cannot work.

    >>> raise InputError("no such thing", expected="a", got="b", hint="c")
    Traceback (most recent call last):
    ...
    sightline.errors.InputError: no such thing
      expected: a
      got: b
      try: c
    """


class InputTypeError(SightlineError, TypeError):
    """The wrong kind of object, or the wrong dtype.

    >>> issubclass(InputTypeError, TypeError)
    True
    """


class BackendError(InputError):
    """A backend asked for by name that cannot do this call.

    >>> issubclass(BackendError, ValueError)
    True
    """


class TooLargeError(InputError):
    """A result larger than memory allows, refused before anything is allocated.

    >>> issubclass(TooLargeError, ValueError)
    True
    """


class SightFileError(SightlineError, ValueError):
    """A file that is damaged, or that Sightline did not write.

    >>> issubclass(SightFileError, ValueError)
    True
    """


class RankError(SightlineError, RuntimeError):
    """A rank of torch.distributed that did not answer: it died, hangs, or took another path.

    >>> issubclass(RankError, RuntimeError)
    True
    """


class MissingExtraError(SightlineError, ImportError):
    """An optional package that is not installed; the message names the extra to install.

    >>> issubclass(MissingExtraError, ImportError)
    True
    """


def explain(what: str, *, expected: object, got: object, hint: str) -> str:
    """The text of an error, always in the same four lines; an error given these parts composes it itself.

    >>> print(explain("q has the wrong rank", expected="2 or more axes", got="1", hint="q[None]"))
    q has the wrong rank
      expected: 2 or more axes
      got: 1
      try: q[None]
    """
    return f"{what}\n  expected: {expected}\n  got: {got}\n  try: {hint}"


def missing(what: str, extra: str, error: ModuleNotFoundError) -> MissingExtraError:
    """The error to raise where an optional package cannot be imported: it names the extra that brings it.

    >>> print(missing("the explorer", "web", ModuleNotFoundError("No module named 'fastapi'", name="fastapi")))
    the explorer needs fastapi
      expected: the extra `web`
      got: No module named 'fastapi'
      try: pip install 'sightline[web]'
    """
    needs = f"{what} needs {error.name}"
    return MissingExtraError(
        needs, expected=f"the extra `{extra}`", got=error, hint=f"pip install 'sightline[{extra}]'"
    )
