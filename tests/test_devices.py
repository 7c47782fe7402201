"""Devices by the words that commands take: one that is there, or one clear error."""

from __future__ import annotations

import pytest
import torch

from sightline.devices import find_device
from sightline.errors import InputError


@pytest.mark.parametrize("name", ["cuda:999", "meta", "no-such-thing", "cpu:x", "", "\udcff", "cuda\0", "hpu"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match=r"this device is not there\n  expected: auto, or one of cpu"):
        find_device(name)


def test_a_device_that_is_there() -> None:
    assert find_device("cpu") == find_device("cpu:1") == "cpu"
    assert find_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
