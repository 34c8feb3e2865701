"""Problems with the auth key and its rotation, and with the API behind it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.active_rotation import ActiveRotation
from meshd.daemon.reporting import problem
from meshd.plaintext import ending
from meshd.tailnet.keys import KeyFile
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.off_api import OffApi
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin

URGENT: Final = timedelta(days=3)
"""From here on the end of a key is an error."""
HOLD_LONG_S: Final = 86400.0
"""A rotation that holds for longer than this needs somebody to look at it."""


def tailnet_api(api: object) -> Iterable[ProblemView]:
    """A credential for the tailnet's API that cannot be used."""
    if isinstance(api, OffApi):
        text = f"the credential for the tailnet's API cannot be used: {api.reason}"
        yield problem(ProblemCode.TAILNET_API_OFF, "error", text, api.cure)


def stuck(why: str) -> Iterable[ProblemView]:
    """A rotation that cannot go on; "" when it can."""
    if why:
        text = f"the rotation of the auth key stands still: {why}"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_STUCK, "error", text, "check the disk")


def key_file(file: KeyFile) -> Iterable[ProblemView]:
    """A key file that cannot be read."""
    if file.problem:
        cure = "the key in use stays in use while it works"
        yield problem(ProblemCode.AUTH_KEY_FILE_UNREADABLE, "warning", file.problem, cure)


def put_off(reason: str, active: ActiveRotation) -> ProblemView:
    """A rotation that is due, for this reason, and waits until the active one has ended."""
    text = f"a rotation of the auth key is due ({reason}), and waits: {active.text}"
    cure = f"it begins when the other one has ended; `{active.command} --status` shows more"
    return problem(ProblemCode.AUTH_KEY_ROTATION_WAITS, "info", text, cure)


def key_ends(in_use: KeptKey, end: datetime, now: datetime, file: KeyFile, *, can_mint: bool) -> ProblemView:
    """The key in use ends soon, or has ended."""
    name = f"the auth key {in_use.id}" if in_use.id else "the auth key"
    if can_mint:
        cure = "`meshctl rotate-key` makes a new one and gives it to all nodes"
    else:
        cure = f"put a new reusable key into {file.name}: meshd gives it to all nodes (docs/tailnet.md)"
    then = "then no machine can join" if end > now else "no machine can join with it"
    text = f"{name} {ending(end, now)}: {then}"
    return problem(ProblemCode.AUTH_KEY_ENDS, "error" if end - URGENT <= now else "warning", text, cure)


def rotation_problems(rotation: AuthKeyRotation, now: datetime, in_use: KeptKey | None) -> Iterable[ProblemView]:
    """An active rotation, and one that meshd took back."""
    name = "the rotation of the auth key"
    refused = rotation.stage is AuthKeyStage.ABORTED and rotation.taken_back and not rotation.aborted_by
    if refused and rotation.source is KeyOrigin.FILE:
        text = f"the new auth key of the file is not used: {rotation.taken_back}"
        cure = "put another one there, or `meshctl rotate-key` to try it again; the old key stays in use while it works"
        yield problem(ProblemCode.AUTH_KEY_FILE_REFUSED, "error", text, cure, since=rotation.ended_at)
    elif refused or (rotation.stage is AuthKeyStage.ABORTED and rotation.aborted_by == "meshd"):
        text = f"{name} was taken back: {rotation.taken_back}"
        cure = "`meshctl rotate-key` tries again"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_TAKEN_BACK, "error", text, cure, since=rotation.ended_at)
    if rotation.ended:
        return
    held_s = (now - rotation.stage_since).total_seconds()
    if rotation.failure:
        cure = "meshd tries again; `meshctl rotate-key --abort` takes it back"
        text = f"{name} ({rotation.stage.value}): {rotation.failure}"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_FAILS, "warning", text, cure)
    if rotation.stage is AuthKeyStage.HOLD and held_s > HOLD_LONG_S:
        text = f"{name} waits for nodes for {held_s / 3600:.0f} h, and the old key is valid until then"
        cure = "`meshctl rotate-key --status` shows them; `--waive NODE` or `--abort`"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_HELD, "error", text, cure)
    elif in_use is not None:
        text = f"{name} is active: {rotation.stage.value}"
        yield problem(ProblemCode.AUTH_KEY_ROTATION_ACTIVE, "info", text, "see `meshctl rotate-key --status`")
