"""What goes wrong, in words: every error says what was expected, what came, and what to try.

```
SightlineError
├── InputError (ValueError)          a value, shape or name that cannot work
│   ├── BackendError                 a backend asked for by name that cannot do this call
│   └── TooLargeError                a result larger than memory allows, refused before it is made
├── InputTypeError (TypeError)       the wrong kind of thing, or the wrong dtype
├── SightFileError (ValueError)      a file that is damaged or was not written by Sightline
└── MissingExtraError (ImportError)  an optional package that is not installed
```
"""

from __future__ import annotations


class SightlineError(Exception):
    """The root of every error Sightline raises itself.

    >>> issubclass(InputError, SightlineError)
    True
    """


class InputError(SightlineError, ValueError):
    """A value, shape or name that cannot work.

    >>> raise InputError(explain("no such thing", expected="a", got="b", hint="c"))
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


class MissingExtraError(SightlineError, ImportError):
    """An optional package that is not installed; the message names the extra to install.

    >>> issubclass(MissingExtraError, ImportError)
    True
    """


def explain(what: str, *, expected: object, got: object, hint: str) -> str:
    """The text of an error, always in the same four lines.

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
        explain(needs, expected=f"the extra `{extra}`", got=error, hint=f"pip install 'sightline[{extra}]'")
    )
