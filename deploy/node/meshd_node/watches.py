"""What the service watches all the time: the login on the tailnet, and the cloud's notices of the machine's end."""

from __future__ import annotations

from typing import Any

from .agent import Watches
from .headlink import HeadLink
from .login_watch import LoginWatch
from .node import Node
from .notices import NoticeWatch


class ServiceWatches(Watches):
    """See the module.

    Args:
        node: the machine.
        link: to the head: a call that waits there is ended when there is something new to tell.
    """

    def __init__(self, node: Node, link: HeadLink) -> None:
        self._login = LoginWatch(node, moved=lambda _old, _new: link.cut())
        self._notices = NoticeWatch(node, moved=link.interrupt)

    def start(self) -> None:
        """Start the threads."""
        self._login.start()
        self._notices.start()

    @property
    def version(self) -> int:
        """That of the cloud's notices."""
        return self._notices.version

    @property
    def problem(self) -> str:
        """That of the login."""
        return self._login.problem

    def notices(self) -> list[str]:
        """Those about the login."""
        return self._login.notices()

    def drop_notices(self, count: int) -> None:
        """The head has the oldest `count`."""
        self._login.drop_notices(count)

    def spot_notices(self) -> list[dict[str, Any]] | None:
        """The cloud's."""
        return self._notices.report()
