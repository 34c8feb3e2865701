"""One rotation at a time: of the auth key, or of the munge key. No I/O.

Both give every node something and wait for it to be proved, and both have a way back: what fails in one must not be
looked for in the other. The journal's records decide, so that it holds across restarts too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from meshd.api.faults import Refused
from meshd.munge import rotation as munge
from meshd.tailnet import rotation as auth


@dataclass(frozen=True, slots=True)
class ActiveRotation:
    """A rotation that has not ended.

    Attributes:
        key: which key, for people.
        command: what shows it with --status, and takes it back with --abort.
        stage: where it stands.
        since: when it began.
        held_up_by: what keeps it from going on just now; "" while all is well.
    """

    key: str
    command: str
    stage: str
    since: datetime
    held_up_by: str

    @property
    def text(self) -> str:
        """What is under way, since when, and what holds it up."""
        more = f" ({self.held_up_by})" if self.held_up_by else ""
        return f"the {self.key} is being rotated since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.stage}{more}"

    def refusal(self) -> Refused:
        """The answer to who asks for another one."""
        return Refused(
            f"one rotation at a time: {self.text}",
            f"wait for its end: `{self.command} --status` shows what is waited for, --waive NODE goes on without one, "
            "--abort takes it back",
        )


def active_rotation(auth_key: auth.Rotation | None, munge_key: munge.Rotation | None) -> ActiveRotation | None:
    """The rotation that has not ended, if there is one.

    Args:
        auth_key: the newest rotation of the auth key.
        munge_key: the newest rotation of the munge key.
    """
    if munge_key is not None and not munge_key.ended:
        return ActiveRotation(
            "munge key", "meshctl rotate-key --munge", munge_key.stage.value, munge_key.started_at, munge_key.failure
        )
    if auth_key is not None and not auth_key.ended:
        return ActiveRotation(
            "auth key", "meshctl rotate-key", auth_key.stage.value, auth_key.started_at, auth_key.failure
        )
    return None
