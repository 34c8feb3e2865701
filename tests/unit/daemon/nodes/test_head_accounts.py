"""The head's accounts as the daemon knows them, while files change and directory services go away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshd.accounts.reader import AccountsReader
from meshd.codes import ProblemCode
from meshd.config import UsersSettings
from meshd.daemon.nodes.head_accounts import FILE, FRESH_S, KNOWN_WAIT_S, READ_S, HeadAccounts
from tests.clocks import HandClock
from tests.live import live_settings
from tests.unit.accounts.test_reader import ANNA, CLEO, ROOT, Getent


@pytest.fixture
def getent(tmp_path: Path) -> Getent:
    (tmp_path / "passwd").write_text(ROOT + ANNA)
    (tmp_path / "group").write_text("root:x:0:\nanna:x:1001:\n")
    return Getent(tmp_path)


class Room:
    """The controller and what it told."""

    def __init__(self, getent: Getent, **users: object) -> None:
        self.clock = HandClock()
        self.live = live_settings(users=UsersSettings(**users))  # type: ignore[arg-type]
        reader = AccountsReader(getent, getent.etc)
        self.accounts = HeadAccounts(reader, self.live, self.clock, getent.etc)
        self.changes = self.regrouped = 0
        self.accounts.on_change(self._changed, self._regrouped)

    def _changed(self) -> None:
        self.changes += 1

    def _regrouped(self) -> None:
        self.regrouped += 1

    def names(self) -> list[str] | None:
        current = self.accounts.current
        return None if current is None else [user.name for user in current.users]

    def codes(self) -> list[str]:
        return [one.code for one in self.accounts.problems()]

    async def doctor(self) -> tuple[str, str]:
        (check,) = self.accounts.checks()
        row = await check.run()
        return row.status, row.code


async def test_a_change_is_seen_at_the_next_look(getent: Getent) -> None:
    room = Room(getent)
    assert room.names() is None
    assert await room.accounts.reconcile() <= 1.0
    assert room.names() == ["anna"] and room.changes == 1
    asked = len(getent.asked)
    await room.accounts.reconcile()
    assert len(getent.asked) == asked, "nothing changed: nothing is read"
    (getent.etc / "passwd").write_text(ROOT + ANNA + "ben:x:1002:1002::/home/ben:/bin/sh\n")
    await room.accounts.reconcile()
    assert room.names() == ["anna", "ben"] and room.changes == 2
    assert await room.doctor() == ("ok", "")


async def test_other_groups_of_one_who_stays_are_told(getent: Getent) -> None:
    room = Room(getent)
    for passwd, group, regrouped in (
        (ROOT + ANNA, "", 0),
        (ROOT + ANNA, "lab:x:5000:anna\n", 1),
        (ROOT + ANNA + "ben:x:1002:1002::/home/ben:/bin/sh\n", "lab:x:5000:anna,ben\nben:x:1002:\n", 1),
        (ROOT + ANNA, "lab:x:5000:anna\n", 1),
        (ROOT + ANNA, "", 2),
    ):
        (getent.etc / "passwd").write_text(passwd)
        (getent.etc / "group").write_text(f"root:x:0:\nanna:x:1001:\n{group}")
        await room.accounts.reconcile()
        assert room.regrouped == regrouped


async def test_a_directory_service_is_asked_now_and_then(getent: Getent) -> None:
    room = Room(getent)
    await room.accounts.reconcile()
    getent.service["passwd"] = CLEO
    await room.accounts.reconcile()
    assert room.names() == ["anna"]
    room.clock.t_s += READ_S
    await room.accounts.reconcile()
    assert room.names() == ["anna", "cleo"]


async def test_what_cannot_be_read_changes_nothing(getent: Getent) -> None:
    room = Room(getent)
    await room.accounts.reconcile()
    (getent.etc / "passwd").write_text("")
    await room.accounts.reconcile()
    assert room.names() == ["anna"] and room.changes == 1
    assert room.codes() == [ProblemCode.ACCOUNTS_UNREADABLE]
    assert await room.doctor() == ("warn", ProblemCode.ACCOUNTS_UNREADABLE)
    (getent.etc / "passwd").write_text(ROOT + ANNA)
    await room.accounts.reconcile()
    assert room.codes() == []


async def test_a_restart_while_a_directory_service_is_away(getent: Getent) -> None:
    getent.service["passwd"] = CLEO
    await Room(getent).accounts.reconcile()
    getent.service["passwd"] = ""
    room = Room(getent)
    assert room.names() == ["anna", "cleo"]
    await room.accounts.reconcile()
    assert room.names() == ["anna", "cleo"]
    assert room.codes() == [ProblemCode.ACCOUNTS_HELD]
    assert await room.doctor() == ("warn", ProblemCode.ACCOUNTS_HELD)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"passwd": 3}', json.dumps({"passwd": [3], "group": [], "local": []})]
)
def test_a_saved_list_that_cannot_be_used(getent: Getent, text: str) -> None:
    (getent.etc / FILE).write_text(text)
    assert Room(getent).names() is None


async def test_another_rule(getent: Getent) -> None:
    room = Room(getent, uid_min=2000)
    await room.accounts.reconcile()
    assert room.names() == []


async def test_left_out(getent: Getent) -> None:
    (getent.etc / "passwd").write_text(ROOT + ANNA + "all:x:1003:0::/home/all:/bin/sh\n")
    room = Room(getent)
    await room.accounts.reconcile()
    assert await room.doctor() == ("warn", ProblemCode.ACCOUNTS_LEFT_OUT)


async def test_what_is_known_is_as_new_as_a_job(getent: Getent) -> None:
    room = Room(getent)

    def read_for(uid: int, age_s: float = 0.0) -> bool:
        return room.accounts.read_for(uid, room.clock.monotonic_s() - age_s)

    assert not read_for(1001), "nothing was read yet"
    await room.accounts.reconcile()
    assert read_for(1001) and read_for(0) and read_for(65534)
    room.clock.t_s += FRESH_S
    assert read_for(1002), "it was read a moment ago: nobody has this number"
    (getent.etc / "passwd").write_text(ROOT + ANNA + "ben:x:1002:1002::/home/ben:/bin/sh\n")
    assert not read_for(1002) and not read_for(1001)
    assert read_for(0) and read_for(1001, KNOWN_WAIT_S), "a system account never waits, a known one not for long"
    await room.accounts.reconcile()
    assert read_for(1002) and read_for(1001)
    assert (room.accounts.uid_of("ben"), room.accounts.uid_of("root")) == (1002, None)


async def test_a_directory_service_is_asked_for_the_user_of_a_job(getent: Getent) -> None:
    room = Room(getent)
    await room.accounts.reconcile()
    asked = len(getent.asked)
    room.clock.t_s += FRESH_S + 1
    getent.service["passwd"] = CLEO
    since_s = room.clock.monotonic_s()
    assert room.accounts.read_for(1001, since_s), "who is known does not wait"
    await room.accounts.reconcile()
    assert len(getent.asked) == asked
    uid = int(CLEO.split(":")[2])
    assert not room.accounts.read_for(uid, since_s)
    await room.accounts.reconcile()
    assert room.accounts.read_for(uid, since_s) and room.names() == ["anna", "cleo"]
    asked = len(getent.asked)
    assert room.accounts.read_for(2000, since_s), "nobody has it: it is not asked for again"
    await room.accounts.reconcile()
    assert len(getent.asked) == asked


async def test_accounts_that_cannot_be_read_hold_no_job_up(getent: Getent) -> None:
    room = Room(getent)
    await room.accounts.reconcile()
    (getent.etc / "passwd").write_text("")
    await room.accounts.reconcile()
    assert room.codes() == [ProblemCode.ACCOUNTS_UNREADABLE]
    assert room.accounts.read_for(1001, room.clock.monotonic_s())


async def test_the_same_accounts_are_the_same_object(getent: Getent) -> None:
    """What is made from them is not made again every READ_S."""
    room = Room(getent)
    await room.accounts.reconcile()
    before = room.accounts.current
    room.clock.t_s += READ_S
    await room.accounts.reconcile()
    assert room.accounts.current is before and room.changes == 1
