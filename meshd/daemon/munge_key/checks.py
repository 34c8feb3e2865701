"""What the munge key's controller reports: checks for `meshctl doctor`, problems for `meshctl status`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.munge_key.head import HeadSide
from meshd.daemon.reporting import fail, ok, problem, warn
from meshd.munge.rotation import MungeRotation, MungeStage, NodeView
from meshd.plaintext import counted

OLD_AFTER_D: Final = 365
COMMAND: Final = "meshctl rotate-key --munge"
_OLD_CURE: Final = f"`{COMMAND}` makes a new one, the fleet running"


async def check_munge(head: HeadSide) -> CheckRow:
    """The head encodes a credential and decodes it again. Raises MungeError when it cannot."""
    await head.round_trip()
    return ok(CheckName.MUNGE, "encodes and decodes")


async def check_key(head: HeadSide, key: str, nodes: Collection[NodeView], now: datetime) -> CheckRow:
    """How old the key is, and which nodes have another one.

    Args:
        head: tells when its key was made.
        key: the fingerprint of the key in force; "" when it cannot be read.
        nodes: all that have joined.
        now: UTC.

    Raises:
        MungeError: the head's key cannot be looked at.
    """
    made_at = await head.made_at()
    days = (now - made_at).days
    age = f"of {made_at:%Y-%m-%d}, {days} day{'' if days == 1 else 's'} old"
    others = sorted(node.slot for node in nodes if node.key not in {"", key})
    if others:
        text = f"another one than the head's is on {counted(len(others), 'node')}: {', '.join(others[:10])}"
        cure = f"`{COMMAND}` gives all the same one; or, after a change by hand, `systemctl restart munge meshd`"
        return fail(CheckName.MUNGE_KEY, ProblemCode.MUNGE_KEYS_DIFFER, text, cure)
    if days > OLD_AFTER_D:
        return warn(CheckName.MUNGE_KEY, ProblemCode.MUNGE_KEY_OLD, age, _OLD_CURE)
    return ok(CheckName.MUNGE_KEY, f"{age}; the same on {sum(bool(node.key) for node in nodes)} nodes")


def key_age(made_at: datetime, now: datetime) -> Iterable[ProblemView]:
    """A key that is old: a rotation is due."""
    if (now - made_at).days > OLD_AFTER_D:
        text = f"the munge key is of {made_at:%Y-%m-%d}, over {OLD_AFTER_D} days old"
        yield problem(ProblemCode.MUNGE_KEY_OLD, "warning", text, _OLD_CURE)


def problems(rotation: MungeRotation | None, stuck: str) -> Iterable[ProblemView]:
    """What keeps the rotation from going on.

    Args:
        rotation: the newest one.
        stuck: why the controller cannot carry it out; "" when it can.
    """
    cure = f"`{COMMAND} --status` tells more"
    if stuck:
        yield problem(ProblemCode.MUNGE_ROTATION_STUCK, "error", f"the munge key cannot be rotated: {stuck}", cure)
    if rotation is None or rotation.ended or not rotation.failure:
        return
    yield problem(
        ProblemCode.MUNGE_ROTATION_FAILS,
        "error" if rotation.stage in {MungeStage.RETURN, MungeStage.CHECK} else "warning",
        f"the munge key's rotation ({rotation.stage.value}): {rotation.failure}",
        f"{cure}; --waive MACHINE goes on without one, --abort takes it back",
        since=rotation.stage_since,
    )
