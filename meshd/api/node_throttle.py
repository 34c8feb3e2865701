"""PURE: how often one address may send a wrong token."""

from __future__ import annotations

from collections import OrderedDict


class Throttle:
    """Up to `burst` wrong tokens at once from an address, then one every `every_s` seconds.

    All users of a node share its address. So only wrong tokens count and wait, and a right one changes nothing: users
    who guess cannot shut the agent out, and its calls do not help them.

    Args:
        burst: wrong tokens that pass without a wait.
        every_s: seconds until one more may pass.
        addresses_max: how many addresses are remembered; the oldest are forgotten first.
    """

    def __init__(self, burst: int = 10, every_s: float = 6.0, addresses_max: int = 1024) -> None:
        self._burst = burst
        self._every_s = every_s
        self._max = addresses_max
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """Seconds that the address must wait; 0: it may send a token now."""
        spent = self._at(address, now_s)
        return max(0.0, (spent - self._burst + 1) * self._every_s) if spent > self._burst - 1 else 0.0

    def wrong(self, address: str, now_s: float) -> None:
        """Count a wrong token of this address."""
        self._spent[address] = (self._at(address, now_s) + 1, now_s)
        self._spent.move_to_end(address)
        while len(self._spent) > self._max:
            self._spent.popitem(last=False)

    def _at(self, address: str, now_s: float) -> float:
        spent, since = self._spent.get(address, (0.0, now_s))
        return max(0.0, spent - (now_s - since) / self._every_s)
