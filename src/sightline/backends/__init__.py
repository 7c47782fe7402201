"""Attention: the definition (`reference`), the backends, and the choice between them."""

from sightline.backends import reference
from sightline.backends.api import attention, which_backend
from sightline.backends.choose import Choice

__all__ = ["Choice", "attention", "reference", "which_backend"]
