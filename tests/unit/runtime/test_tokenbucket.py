"""A burst at once, then one after the other; nobody's tokens are another's."""

from __future__ import annotations

from meshd.runtime.tokenbucket import TokenBuckets


def test_a_burst_then_one_every_so_often() -> None:
    buckets = TokenBuckets(3, 2.0)
    assert [buckets.take("a", 100.0) for _ in range(5)] == [0, 0, 0, 2.0, 4.0]
    assert buckets.take("b", 100.0) == 0
    assert not buckets.try_take("a", 103.9)
    assert buckets.try_take("a", 106.1)
    assert not buckets.try_take("a", 106.2)
    assert [buckets.take("a", 1000.0) for _ in range(4)] == [0, 0, 0, 2.0]


def test_no_more_keys_than_said_are_remembered() -> None:
    buckets = TokenBuckets(1, 10.0, keys_max=100)
    for key in range(1000):
        assert buckets.try_take(key, 0.0)
    assert not buckets.try_take(999, 0.0)
    assert buckets.try_take(0, 0.0)
