"""Keeps the metadata service closed to users: before slurmd starts, and again when somebody has flushed the rules."""

from __future__ import annotations

import threading

from . import metadata
from .console import say
from .errors import NodeError
from .node import Node

INTERVAL_S = 60.0
FIRST_WAIT_S = 60.0
TEXT_MAX = 400


class MetadataGuard:
    """A thread beside the agent's loop: the first rules are made while the head answers to the join.

    Args:
        node: this machine; nothing is done where its root is a directory, for the rules would be the host's.

    Attributes:
        open: why users can reach the service; "" when they cannot.
    """

    def __init__(self, node: Node) -> None:
        self.open = ""
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata guard", daemon=True)
        self._idle = not node.guards_metadata

    def start(self) -> None:
        """Begin."""
        if self._idle:
            self._first.set()
        else:
            self._thread.start()

    def wait(self) -> None:
        """Return once the service was closed, or cannot be: no job of a user may come before."""
        if not self._first.wait(FIRST_WAIT_S):
            self.open = f"its rules are not made after {FIRST_WAIT_S:g} s"

    def look(self) -> None:
        """Close it unless it is closed."""
        try:
            why = "" if self._first.is_set() and metadata.in_place() else metadata.close()
        except (NodeError, OSError) as error:
            why = str(error) or type(error).__name__
        if why != self.open or not self._first.is_set():
            say(f"the metadata service is {f'open to users: {why}' if why else 'closed to users'}")
        self.open = why[:TEXT_MAX]

    def _run(self) -> None:
        again = threading.Event()
        while True:
            try:
                self.look()
            finally:
                self._first.set()
            again.wait(INTERVAL_S)
