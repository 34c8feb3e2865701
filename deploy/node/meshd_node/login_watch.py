"""Looks after this machine's own login on the tailnet, beside the agent's loop, and mends it without the head.

A refused login leaves a zombie that stays for ever (see login.py); an expired node key, and a device that was deleted
by hand, want a login with the stored auth key or the spare; a tailscale that was switched off, by hand or by a recovery that did not
come to its end, is switched on. A good login is never touched. Where control only seems to be away it is
asked, with growing pauses, whether it still knows this device; the key is not shown to it before it wants one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .backoff import Backoff, half_more_or_less
from .console import say
from .errors import NodeError
from .files import locked
from .login import RECOVER_S, SILENT, ailment, asked, device, online, recover, renew, switch_on
from .node import Node
from .tailscale import Tailscale

LOOK_S = 15.0
SURE_S = 5.0
SILENT_S = 15.0
"""A control server that restarts, or a link that is away for a moment, is back within this."""

PAUSE_FIRST_S = 30.0
PAUSE_MAX_S = 1800.0
NOTICES_MAX = 16


class LoginWatch:
    """The watch. Its thread ends with the process.

    Args:
        node: this machine.
        monotonic: seconds.
        spread: a factor for pauses, so that a fleet does not log in as one.
        moved: called with the old and the new address after this machine got another one.
        within_s: for control to show this machine online after each try.
    """

    def __init__(
        self,
        node: Node,
        monotonic: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = half_more_or_less,
        within_s: float = RECOVER_S,
        moved: Callable[[str, str], None] = lambda _old, _new: None,
    ) -> None:
        self._node = node
        self._tailscale = Tailscale(node.paths.tailscaled_socket)
        self._monotonic = monotonic
        self._within_s = within_s
        self._moved = moved
        self._address = ""
        self._lock = threading.Lock()
        self._notices: list[str] = []
        self._since_s = 0.0
        self._next_s = 0.0
        self._backoff = Backoff(PAUSE_FIRST_S, PAUSE_MAX_S, spread)
        self._ailment = ""
        self.problem = ""
        """What is wrong with the login now, for people; "" when nothing is."""

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._run, name="login watch", daemon=True).start()

    def notices(self) -> list[str]:
        """What happened and was not told to the head yet, oldest first."""
        with self._lock:
            return list(self._notices)

    def told(self, count: int) -> None:
        """The head has the oldest `count` of them."""
        with self._lock:
            del self._notices[:count]

    def look(self) -> float:
        """Look once, and mend what was wrong at two looks; the seconds until the next look is worth it."""
        try:
            status = self._tailscale.status()
            found = ailment(status)
            if not found:
                if online(status):
                    self._look_at_address(status)
                    self._over("" if self._ailment == SILENT else "it came back by itself")
                return LOOK_S
            now_s = self._monotonic()
            if not self._ailment:
                sure_s = SILENT_S if found == SILENT else SURE_S
                self._ailment, self._since_s, self._next_s = found, now_s, now_s + sure_s
            if now_s >= self._next_s:
                self._mend()
        except (NodeError, OSError) as error:  # tailscaled does not run, or does not end
            if self._ailment:
                self._failed(str(error))
        return max(1.0, min(self._next_s - self._monotonic(), LOOK_S)) if self._ailment else LOOK_S

    def _mend(self) -> None:
        with locked(self._node.paths.run_dir):  # not while the head has it log in anew
            status = self._tailscale.status()
            found = ailment(status)
            if not found:
                return  # mended meanwhile: the next look tells
            self._ailment = found
            if status.get("BackendState") == "Stopped":
                how = switch_on(self._tailscale, self._within_s)
            else:
                mend = renew if asked(status) else recover
                how = mend(self._node, self._tailscale, self._within_s)
            status = self._tailscale.status()
        if online(status):
            self._look_at_address(status)
            self._over(how)
            return
        self._ailment = ailment(status) or self._ailment
        self._failed(how)

    def _look_at_address(self, status: dict[str, Any]) -> None:
        old, new = self._address, device(status)["address"]
        self._address = new or old
        if old and new and new != old:
            self._moved(old, new)

    def _failed(self, why: str) -> None:
        pause_s = self._backoff.next_s()
        self._next_s = self._monotonic() + pause_s
        if self._ailment == SILENT:
            return  # that control is away is no fault of this machine's: it is waited for
        tries = self._backoff.failures
        self.problem = f"not connected to the tailnet's control server: {self._ailment}; tried {tries} times: {why}"
        say(f"{self.problem}; again in {pause_s:.0f} s", urgent=tries == 1)

    def _over(self, how: str) -> None:
        """Nothing is wrong any more; without a word of `how` that is nothing to tell."""
        if self._ailment and how:
            for_s = self._monotonic() - self._since_s
            notice = f"its login on the tailnet was broken for {for_s:.0f} s ({self._ailment}): {how}"
            say(notice, urgent=True)
            with self._lock:
                self._notices = [*self._notices, notice[:500]][-NOTICES_MAX:]
        self._backoff.reset()
        self._ailment = self.problem = ""

    def _run(self) -> None:
        while True:
            time.sleep(self.look())
