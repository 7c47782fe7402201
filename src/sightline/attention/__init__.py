"""Attention: the definition (`reference`), the backends, and the choice between them."""

from sightline.attention import reference
from sightline.attention.api import attention, which_backend
from sightline.attention.choose import Choice

__all__ = ["Choice", "attention", "reference", "which_backend"]
