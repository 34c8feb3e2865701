"""Reports to the head what keeps this machine from joining, while it cannot poll yet."""

from __future__ import annotations

import time
from collections.abc import Callable

from .errors import HeadRefused, HeadUnreachable, MungeFault, NodeError, ToolFailed, ToolMissing, ToolTimeout
from .headlink import HeadLink

TEXT_MAX = 400
SPACING_S = 5.0
SAME_AGAIN_S = 60.0
CALL_S = 10.0
_NO_SUCH_PLACE = 404
"""An older head has no endpoint for reports."""

_STAGES = {
    "apt-get": "packages", "dpkg": "packages", "dpkg-query": "packages", "slurmd": "slurmd", "nvidia-smi": "gpu",
    "munged": "munge", "munge": "munge", "unmunge": "munge", "useradd": "accounts", "usermod": "accounts",
    "groupadd": "accounts", "groupmod": "accounts", "tailscale": "tailnet",
}  # fmt: skip


def stage_of(error: BaseException) -> str:
    """The part of the join that failed, by its name in the head's API."""
    if isinstance(error, (ToolFailed, ToolMissing, ToolTimeout)):
        return _STAGES.get(error.program, "agent")
    if isinstance(error, MungeFault):
        return "munge"
    if isinstance(error, OSError):
        return "disk"
    return error.stage if isinstance(error, NodeError) else "agent"


class Trouble:
    """Sends reports at a limited rate, and ignores those that do not arrive.

    Args:
        link: to the head.
        token: returns the join token, or the node token once there is one.
        monotonic: seconds.
    """

    def __init__(
        self, link: HeadLink, token: Callable[[], str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._token = token
        self._monotonic = monotonic
        self._last: tuple[str, str] = ("", "")
        self._at_s = float("-inf")
        self._off = False

    def report(self, stage: str, text: str) -> None:
        """Report a text; the same one at most once a minute."""
        words = (stage, " ".join(text.split())[-TEXT_MAX:])
        pause_s = SAME_AGAIN_S if words == self._last else SPACING_S
        token = self._token()
        if self._off or not token or self._monotonic() - self._at_s < pause_s:
            return
        self._last, self._at_s = words, self._monotonic()
        try:
            self._link.call("POST", "/v1/trouble", token, {"stage": stage, "text": words[1]}, CALL_S)
        except HeadUnreachable:
            return
        except HeadRefused as error:
            self._off = error.status == _NO_SUCH_PLACE
