"""Why something went wrong, in one line that a terminal and JSON can hold, whatever was raised."""

from __future__ import annotations

from sightline.errors import SightlineError


def told(error: BaseException) -> str:
    """An error in one short line, of whatever class it is.

    >>> told(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    >>> told(KeyboardInterrupt())
    'KeyboardInterrupt'
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error that cannot even be written down
        text = ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def left_out(name: str, error: BaseException) -> str:
    """One line on why something is left out.

    >>> left_out("my run", OSError("the disk\\nis gone"))
    'my run: OSError: the disk is gone'
    """
    reason = " ".join(str(error).split()) if isinstance(error, SightlineError) else told(error)
    return plain(f"{name}: {reason}")[:400]


def plain(text: str) -> str:
    """A text for a line of a terminal and for JSON: no control characters, no halves of characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
