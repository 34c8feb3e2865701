"""Watches this machine's login on the tailnet in a thread, and repairs it without the head.

A refused login leaves a zombie that does not recover (see login.py). An expired node key, and a device that was
deleted by hand, need a login with the stored auth key or the spare key. A tailscale that is off, by hand or after an
interrupted recovery, is turned on. The watch never touches a good login. When control seems to be away, it asks with
growing pauses whether control still knows this device; it uses a key only after control wants a login.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .backoff import Backoff, jitter
from .console import say
from .errors import NodeError
from .files import locked
from .login import RECOVER_S, SILENT, device, login_fault, login_wanted, online, recover, renew, switch_on
from .node import Node
from .tailscale import Tailscale

LOOK_S = 15.0
SURE_S = 5.0
SILENT_S = 15.0
"""A restart of the control server, or a short loss of the link, takes less than this."""

PAUSE_FIRST_S = 30.0
PAUSE_MAX_S = 1800.0
NOTICES_MAX = 16


class LoginWatch:
    """The watch. Its thread ends with the process.

    Args:
        node: this machine.
        monotonic: seconds.
        spread: returns a random factor for pauses, so that a fleet does not log in at the same moment.
        moved: called with the old and the new address when this machine's address changes.
        within_s: for control to show this machine online after each try.
    """

    def __init__(
        self,
        node: Node,
        monotonic: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = jitter,
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
        self._fault = ""
        self.problem = ""
        """What is wrong with the login now, for people; "" when nothing is."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="login watch", daemon=True).start()

    def notices(self) -> list[str]:
        """Notices that the head does not have yet, oldest first."""
        with self._lock:
            return list(self._notices)

    def drop_notices(self, count: int) -> None:
        """Drop the oldest `count` notices: the head has them."""
        with self._lock:
            del self._notices[:count]

    def look(self) -> float:
        """Check once, and repair a fault that two checks saw. Returns the seconds until the next check."""
        try:
            status = self._tailscale.status()
            found = login_fault(status)
            if not found:
                if online(status):
                    self._look_at_address(status)
                    self._over("" if self._fault == SILENT else "it came back by itself")
                return LOOK_S
            now_s = self._monotonic()
            if not self._fault:
                sure_s = SILENT_S if found == SILENT else SURE_S
                self._fault, self._since_s, self._next_s = found, now_s, now_s + sure_s
            if now_s >= self._next_s:
                if self._node.own_device:
                    self._failed("its owner has logged this machine in, and may do so again")
                else:
                    self._repair()
        except (NodeError, OSError) as error:  # tailscaled does not run, or does not end
            if self._fault:
                self._failed(str(error))
        return max(1.0, min(self._next_s - self._monotonic(), LOOK_S)) if self._fault else LOOK_S

    def _repair(self) -> None:
        with locked(self._node.paths.run_dir):  # not during a login that the head ordered
            status = self._tailscale.status()
            found = login_fault(status)
            if not found:
                return  # it recovered meanwhile: the next check reports it
            self._fault = found
            if status.get("BackendState") == "Stopped":
                how = switch_on(self._tailscale, self._within_s)
            else:
                repair = renew if login_wanted(status) else recover
                how = repair(self._node, self._tailscale, self._within_s)
            status = self._tailscale.status()
        if online(status):
            self._look_at_address(status)
            self._over(how)
            return
        self._fault = login_fault(status) or self._fault
        self._failed(how)

    def _look_at_address(self, status: dict[str, Any]) -> None:
        old, new = self._address, device(status)["address"]
        self._address = new or old
        if old and new and new != old:
            self._moved(old, new)

    def _failed(self, why: str) -> None:
        pause_s = self._backoff.next_s()
        self._next_s = self._monotonic() + pause_s
        if self._fault == SILENT:
            return  # control is away, which is no fault of this machine: wait
        tries = self._backoff.failures
        self.problem = f"not connected to the tailnet's control server: {self._fault}; tried {tries} times: {why}"
        say(f"{self.problem}; again in {pause_s:.0f} s", urgent=tries == 1)

    def _over(self, how: str) -> None:
        """The fault is over. Report it when `how` says what helped."""
        if self._fault and how:
            for_s = self._monotonic() - self._since_s
            notice = f"its login on the tailnet was broken for {for_s:.0f} s ({self._fault}): {how}"
            say(notice, urgent=True)
            with self._lock:
                self._notices = [*self._notices, notice[:500]][-NOTICES_MAX:]
        self._backoff.reset()
        self._fault = self.problem = ""

    def _run(self) -> None:
        while True:
            time.sleep(self.look())
