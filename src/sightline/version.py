"""Which version this is: the one place where the package says so."""

__version__ = "0.1.0"
