"""PURE: how often one address may come with a token that is wrong."""

from __future__ import annotations

from collections import OrderedDict


class Throttle:
    """Up to `burst` wrong tokens at once from an address, then one every `every_s` seconds.

    All users of a node share its address. So only wrong tokens are counted and slowed down, and a right one changes
    nothing: the agent of a node whose users guess is served, and the users gain nothing by its calls.

    Args:
        burst: wrong tokens that are let pass at once.
        every_s: seconds in which one more is earned back.
        addresses_max: as many addresses are remembered; the oldest go.
    """

    def __init__(self, burst: int = 10, every_s: float = 6.0, addresses_max: int = 1024) -> None:
        self._burst = burst
        self._every_s = every_s
        self._max = addresses_max
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """Seconds that the address must wait; 0 when it may come."""
        spent = self._at(address, now_s)
        return max(0.0, (spent - self._burst + 1) * self._every_s) if spent > self._burst - 1 else 0.0

    def wrong(self, address: str, now_s: float) -> None:
        """The address came with a wrong token."""
        self._spent[address] = (self._at(address, now_s) + 1, now_s)
        self._spent.move_to_end(address)
        while len(self._spent) > self._max:
            self._spent.popitem(last=False)

    def _at(self, address: str, now_s: float) -> float:
        spent, since = self._spent.get(address, (0.0, now_s))
        return max(0.0, spent - (now_s - since) / self._every_s)
