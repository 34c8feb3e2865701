"""Keeps the metadata service closed to users: from before slurmd starts, and again after the rules were flushed."""

from __future__ import annotations

import threading

from . import metadata
from .console import say
from .errors import NodeError
from .kind import may_change_network
from .node import Node

INTERVAL_S = 60.0
FIRST_WAIT_S = 60.0
TEXT_MAX = 400


class MetadataGuard:
    """A thread beside the agent's loop, so that it makes the first rules while the agent joins.

    Args:
        node: this machine. With a directory as its root the guard does nothing: the rules would be the host's.

    Attributes:
        open: why users can reach the service; "" when they cannot.
    """

    def __init__(self, node: Node) -> None:
        self.open = ""
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata guard", daemon=True)
        self._idle = not node.guards_metadata
        self._look = self._close if may_change_network(node.paths.proc) else metadata.answers

    def start(self) -> None:
        """Start the thread."""
        if self._idle:
            self._first.set()
        else:
            self._thread.start()

    def wait(self) -> None:
        """Return when the service is closed, or cannot be closed. No user's job may start before."""
        if not self._first.wait(FIRST_WAIT_S):
            self.open = f"its rules are not in place after {FIRST_WAIT_S:g} s"

    def look(self) -> None:
        """Check the rules once, and make them when they are missing.

        A container without CAP_NET_ADMIN can make none: there it is checked whether any metadata service answers.
        """
        try:
            why = self._look()
        except (NodeError, OSError) as error:
            why = str(error) or type(error).__name__
        if why != self.open or not self._first.is_set():
            say(f"the metadata service is {f'open to users: {why}' if why else 'closed to users'}")
        self.open = why[:TEXT_MAX]

    def _close(self) -> str:
        return "" if self._first.is_set() and metadata.in_place() else metadata.close()

    def _run(self) -> None:
        again = threading.Event()
        while True:
            try:
                self.look()
            finally:
                self._first.set()
            again.wait(INTERVAL_S)
