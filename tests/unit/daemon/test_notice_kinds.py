"""Each kind of problem is told once when it begins and once when it is over; those of the keys from what shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode, WarningCode
from meshd.config import NotifySettings
from meshd.daemon.active_rotation import ActiveRotation
from meshd.daemon.auth_key import problems as auth_key
from meshd.daemon.munge_key import checks as munge_key
from meshd.munge.rotation import MungeRotation, MungeStage
from meshd.plan.notices import NOTHING, Alert, Rules, State, alert_key, delivered, due, looked, merged
from meshd.tailnet.keys import KeyFile
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin
from tests.clocks import LoopClock, in_loop_time
from tests.unit.daemon.munge_lab import SILENT_S, MungeLab
from tests.unit.daemon.test_notifications import Meshd, states
from tests.unit.notify.test_receivers import hook
from tests.unit.worlds import NOW

CODES = sorted({*ProblemCode, *WarningCode, EventKind.SPOT_NOTICE})
"""All that can be told."""
RULES = Rules()
LOOK_S = 20


@pytest.mark.parametrize("code", CODES)
def test_each_code_is_told_once_and_its_end_once(code: str) -> None:
    told, taken, now = NOTHING, [], NOW
    one = Alert(alert_key(code, "h100", "lab-h100-1"), code, "warning", "text")
    for there in (True,) * 90 + (False,) * 90:
        told = looked(told, merged([one] if there else []), RULES, now)
        notice = due(told, RULES, now)
        if notice is not None:
            taken += [(item.state, item.alert.code, now) for item in notice.items]
            told = delivered(told, notice, now)
        now += timedelta(seconds=LOOK_S)
    begun = RULES.after_s + RULES.group_s
    ended = 90 * LOOK_S + RULES.resolved_after_s
    assert [(state, found) for state, found, _ in taken] == [(State.BEGUN, code), (State.RESOLVED, code)]
    for expected_s, (_, _, at) in zip((begun, ended), taken, strict=True):
        assert 0 <= (at - NOW).total_seconds() - expected_s < LOOK_S
    assert told.entries == {}, "nothing of it is left"


def test_one_that_lasts_and_grows_is_told_each_time_once() -> None:
    told, taken, now = NOTHING, [], NOW
    rules = replace(RULES, repeat_s=3600.0)
    for count in (1,) * 100 + (2,) * 100 + (3, 1) * 100 + (0,) * 50:
        alert = Alert("key", "machine_late", "error", "text", count=count)
        told = looked(told, [alert] if count else [], rules, now)
        notice = due(told, rules, now)
        if notice is not None:
            taken += [(item.state, item.alert.count) for item in notice.items]
            told = delivered(told, notice, now)
        now += timedelta(seconds=LOOK_S)
    grown, still = taken.count((State.GROWN, 2)), [one for one in taken if one[0] is State.STILL]
    assert taken[0] == (State.BEGUN, 1) and taken[-1][0] is State.RESOLVED
    assert grown == 1 and len([one for one in taken if one[0] is State.GROWN]) == 2, taken
    assert 1 <= len(still) <= 400 * LOOK_S / rules.repeat_s
    assert len(taken) == 4 + len(still)


# -- the keys -------------------------------------------------------------------------------------------------------


KEY = KeptKey(SecretStr("tskey-auth-k1-x"), "k1", NOW + timedelta(days=9), minted=True)
ACTIVE = ActiveRotation("the munge key", munge_key.COMMAND, "verify", NOW, "")


def file_of(path: str) -> KeyFile:
    one = KeyFile(Path(path))
    one.problem = "it is empty"
    return one


def auth(
    stage: AuthKeyStage = AuthKeyStage.MINT, source: KeyOrigin = KeyOrigin.MINTED, **more: Any
) -> list[ProblemView]:
    one = AuthKeyRotation("r1", source, stage, NOW, NOW, "meshd", "the key ends soon", KEY.ref())
    found = auth_key.rotation_problems(replace(one, **more), NOW + timedelta(days=2), KEY)
    return [shown for shown in found if shown.severity != "info"]


def munge_of(stage: MungeStage) -> list[ProblemView]:
    one = MungeRotation("r1", stage, NOW, NOW, "root", "a" * 16, failure="node h100-1 does not answer")
    return list(munge_key.problems(one, ""))


def ends(days: int) -> list[ProblemView]:
    return [auth_key.key_ends(KEY, NOW + timedelta(days=days), NOW, file_of("/etc/key"), can_mint=days > 3)]


KEYS: dict[str, tuple[Callable[[], Iterable[ProblemView]], ProblemCode]] = {
    "auth key: due": (lambda: ends(9), ProblemCode.AUTH_KEY_ENDS),
    "auth key: due at once": (lambda: ends(1), ProblemCode.AUTH_KEY_ENDS),
    "auth key: over": (lambda: ends(-1), ProblemCode.AUTH_KEY_ENDS),
    "auth key: fails": (lambda: auth(failure="HTTP 403"), ProblemCode.AUTH_KEY_ROTATION_FAILS),
    "auth key: held": (lambda: auth(AuthKeyStage.HOLD), ProblemCode.AUTH_KEY_ROTATION_HELD),
    "auth key: taken back": (
        lambda: auth(AuthKeyStage.ABORTED, taken_back="no node could log in", ended_at=NOW),
        ProblemCode.AUTH_KEY_ROTATION_TAKEN_BACK,
    ),
    "auth key: the file's is refused": (
        lambda: auth(AuthKeyStage.ABORTED, KeyOrigin.FILE, taken_back="it is no key", ended_at=NOW),
        ProblemCode.AUTH_KEY_FILE_REFUSED,
    ),
    "auth key: the file cannot be read": (
        lambda: auth_key.key_file(file_of("/etc/key")), ProblemCode.AUTH_KEY_FILE_UNREADABLE
    ),
    "auth key: stuck": (lambda: auth_key.stuck("the disk is full"), ProblemCode.AUTH_KEY_ROTATION_STUCK),
    "munge key: due": (lambda: munge_key.key_age(NOW - timedelta(days=366), NOW), ProblemCode.MUNGE_KEY_OLD),
    "munge key: fails": (lambda: munge_of(MungeStage.VERIFY), ProblemCode.MUNGE_ROTATION_FAILS),
    "munge key: fails on the way back": (lambda: munge_of(MungeStage.RETURN), ProblemCode.MUNGE_ROTATION_FAILS),
    "munge key: stuck": (lambda: munge_key.problems(None, "no key can be made"), ProblemCode.MUNGE_ROTATION_STUCK),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
async def test_what_is_due_or_fails_with_a_key_reaches_a_receiver_once_and_its_end_once(
    name: str, tmp_path: Path
) -> None:
    source, code = KEYS[name]
    async with hook() as server:
        it = Meshd(tmp_path, ops=NotifySettings(url=server.url))
        it.problems = list(source())
        assert [one.code for one in it.problems] == [code]
        await it.after(0)
        await it.after(91)
        await it.until(lambda: len(it.told()) == 1)
        for _ in range(20):
            await it.after(600)
        assert len(server.got) == 1
        it.problems = []
        await it.after(1)
        await it.after(301)
        await it.until(lambda: len(it.told()) == 2)
        for _ in range(20):
            await it.after(600)
        await it.close()
    assert states(server) == [[("begun", code)], [("resolved", code)]]


async def test_what_only_goes_on_is_for_those_who_want_to_hear_all(tmp_path: Path) -> None:
    """A rotation that is active, and one that is due and waits for it, are no fault."""
    async with hook() as some, hook() as all_:
        it = Meshd(
            tmp_path, some=NotifySettings(url=some.url), all=NotifySettings(url=all_.url, min_severity="info")
        )  # fmt: skip
        one = AuthKeyRotation("r1", KeyOrigin.MINTED, AuthKeyStage.MINT, NOW, NOW, "meshd", "", KEY.ref())
        it.problems = [*auth_key.rotation_problems(one, NOW, KEY), auth_key.put_off("the key ends soon", ACTIVE)]
        await it.after(0)
        await it.after(91)
        await it.until(it.told)
        await it.close()
    assert not some.got
    told = [("begun", ProblemCode.AUTH_KEY_ROTATION_ACTIVE), ("begun", ProblemCode.AUTH_KEY_ROTATION_WAITS)]
    assert states(all_) == [told]


@in_loop_time
async def test_the_munge_key_is_old_until_a_rotation_has_ended(tmp_path: Path) -> None:
    lab = MungeLab(tmp_path)
    lab.head.days = 366
    await lab.age.reconcile()
    assert [one.code for one in lab.age.problems()] == [ProblemCode.MUNGE_KEY_OLD]
    running = asyncio.create_task(lab.age.run())
    lab.node(1).start()
    lab.start()
    await asyncio.sleep(SILENT_S)
    await lab.ask()
    assert not list(lab.age.problems()), "it is being rotated"
    lab.head.days = 0
    await lab.until(MungeStage.DONE)
    await asyncio.sleep(1)
    made_at = lab.age.made_at
    assert made_at is not None and (LoopClock().now() - made_at).days == 0, "it was looked at when the rotation ended"
    assert not list(lab.age.problems())
    running.cancel()
