"""What is kept stays within its bytes; what was not used longest goes first."""

from __future__ import annotations

from sightline.explore.cache import Cache


def test_a_cache_is_bounded() -> None:
    cache: Cache[bytes] = Cache(limit=100)
    for i in range(50):
        cache.put(i, b"x", 30)
        assert cache.size <= 100
    assert [i for i in range(50) if cache.get(i)] == [47, 48, 49]
    cache.get(47)
    cache.put("new", b"x", 30)
    assert cache.get(48) is None
    assert cache.get(47) is not None
    cache.put("huge", b"x", 101)
    assert cache.get("huge") is None
    cache.put(47, b"x", 10)
    assert cache.size == 70
    cache.forget(lambda key: key == 47)
    assert cache.size == 60
