"""One rotation at a time: of the auth key, or of the munge key.

Both give every node a key, wait until the node proves it, and have a way back. When both ran at once, nobody could tell
which of them caused a failure. The journal's records decide, so the rule also holds across a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from meshd.api.faults import Refused
from meshd.codes import RefusalCode
from meshd.store.auth_rotations import AuthRotations
from meshd.store.munge_rotations import MungeRotations


@dataclass(frozen=True, slots=True)
class ActiveRotation:
    """A rotation that has not ended.

    Attributes:
        key: the name of the key, for people.
        command: shows the rotation with --status and takes it back with --abort.
        stage: the stage that it is in.
        since: when it began, UTC.
        held_up_by: what it waits for; "" when it makes progress.
    """

    key: str
    command: str
    stage: str
    since: datetime
    held_up_by: str

    @property
    def text(self) -> str:
        """Names the key, the time of the beginning, the stage and what holds the rotation up."""
        more = f" ({self.held_up_by})" if self.held_up_by else ""
        return f"the {self.key} is being rotated since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.stage}{more}"

    def refusal(self) -> Refused:
        """The answer to a request for another rotation."""
        return Refused(
            f"one rotation at a time: {self.text}",
            f"wait for its end: `{self.command} --status` shows what is waited for, --waive NODE goes on without one, "
            "--abort takes it back",
            code=RefusalCode.ROTATION_ACTIVE,
        )


class ActiveRotations:
    """Looks into the journal for the rotation that has not ended.

    Args:
        auth_key: rotations of the auth key.
        munge_key: rotations of the munge key.
    """

    def __init__(self, auth_key: AuthRotations, munge_key: MungeRotations) -> None:
        self._auth_key = auth_key
        self._munge_key = munge_key

    def current(self) -> ActiveRotation | None:
        """The rotation that has not ended; None when there is none."""
        munge, auth = self._munge_key.last(), self._auth_key.last()
        if munge is not None and not munge.ended:
            return ActiveRotation(
                "munge key", "meshctl rotate-key --munge", munge.stage.value, munge.started_at, munge.failure
            )
        if auth is not None and not auth.ended:
            return ActiveRotation("auth key", "meshctl rotate-key", auth.stage.value, auth.started_at, auth.failure)
        return None
