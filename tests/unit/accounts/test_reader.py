"""Reading the head's accounts: files that are not whole, and directory services that do not answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from meshd.accounts.reader import AccountsReader, AccountsUnreadable
from meshd.errors import CommandTimeout
from meshd.plan.accounts import Rule
from meshd.runtime.run import Result

ROOT = "root:x:0:0::/root:/bin/sh\n"
ANNA = "anna:x:1001:1001::/home/anna:/bin/sh\n"
CLEO = "cleo:x:200001:200001::/home/cleo:/bin/sh\n"


class Getent:
    """Answers as getent does: local files first, then a directory service, which may be away or not enumerate."""

    def __init__(self, etc: Path) -> None:
        self.etc = etc
        self.service: dict[str, str] = {"passwd": "", "group": ""}
        self.enumerates = True
        self.hangs = False
        self.code = 0
        self.asked: list[tuple[str, ...]] = []

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        assert argv[0] == "getent"
        database, keys = argv[1], argv[2:]
        self.asked.append(tuple(argv[1:]))
        if self.hangs:
            raise CommandTimeout(list(argv), timeout_s)
        if database == "initgroups":
            rows = [line.split(":") for line in self._lines("group", True)]
            lines = [" ".join([key, *(row[2] for row in rows if key in row[3].split(","))]) for key in keys]
            return Result(tuple(argv), self.code, "".join(f"{line}\n" for line in lines), "")
        lines = self._lines(database, bool(keys) or self.enumerates)
        if not keys:
            return Result(tuple(argv), self.code, "".join(f"{line}\n" for line in lines), "")
        found = [line for key in keys for line in lines if key in (line.split(":")[0], line.split(":")[2])]
        return Result(tuple(argv), 0 if len(found) == len(keys) else 2, "".join(f"{line}\n" for line in found), "")

    def _lines(self, database: str, service: bool) -> list[str]:
        text = (self.etc / database).read_text() + (self.service[database] if service else "")
        return text.splitlines()


@pytest.fixture
def getent(tmp_path: Path) -> Getent:
    (tmp_path / "passwd").write_text(ROOT + ANNA)
    (tmp_path / "group").write_text("root:x:0:\nanna:x:1001:\nlab:x:2000:anna\n")
    return Getent(tmp_path)


async def read(getent: Getent, rule: Rule | None = None) -> list[str]:
    found = await AccountsReader(getent, getent.etc).read(rule or Rule())
    return [user.name for user in found.accounts.users]


async def test_files_and_a_service(getent: Getent) -> None:
    getent.service = {"passwd": CLEO, "group": "cleo:x:200001:\n"}
    found = await AccountsReader(getent, getent.etc).read(Rule())
    assert [(user.name, user.local) for user in found.accounts.users] == [("anna", True), ("cleo", False)]
    assert [group.name for group in found.accounts.groups] == ["anna", "lab", "cleo"]
    assert found.seen.members is None


async def test_a_service_that_does_not_enumerate(getent: Getent) -> None:
    getent.enumerates = False
    getent.service = {"passwd": CLEO, "group": "hpc:x:3000:cleo,anna\nmore:x:3001:cleo\n"}
    assert await read(getent) == ["anna"]
    found = await AccountsReader(getent, getent.etc).read(Rule("hpc"))
    assert [user.name for user in found.accounts.users] == ["anna", "cleo"]
    assert {(group.name, group.members) for group in found.accounts.groups} >= {
        ("hpc", ("anna", "cleo")), ("more", ("cleo",)), ("lab", ("anna",)),
    }  # fmt: skip
    assert found.seen.members == {"anna", "cleo"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("passwd", ""), ("passwd", ANNA), ("passwd", ROOT + ANNA[:-5]), ("passwd", ROOT + ANNA.rstrip()),
        ("passwd", ROOT + "anna:x:10\n"), ("group", "lab:x:2000:anna\n"), ("group", "root:x:0:\nla"),
    ],
)  # fmt: skip
async def test_a_file_that_is_not_whole(getent: Getent, file: str, text: str) -> None:
    (getent.etc / file).write_text(text)
    with pytest.raises(AccountsUnreadable):
        await read(getent)


async def test_a_file_that_is_missing(getent: Getent) -> None:
    (getent.etc / "passwd").unlink()
    with pytest.raises(AccountsUnreadable):
        await read(getent)


async def test_a_group_that_is_not_there(getent: Getent) -> None:
    with pytest.raises(AccountsUnreadable):
        await read(getent, Rule("hpc"))


async def test_a_service_that_hangs_or_fails(getent: Getent) -> None:
    getent.hangs = True
    with pytest.raises(AccountsUnreadable):
        await read(getent)
    getent.hangs, getent.code = False, 1
    with pytest.raises(AccountsUnreadable):
        await read(getent)


async def test_a_file_that_is_cut_off_while_it_is_read(getent: Getent) -> None:
    reader = AccountsReader(getent, getent.etc)

    async def cut(*argv: Any, **more: Any) -> Result:
        (getent.etc / "passwd").write_text(ROOT)
        return await getent(*argv, **more)

    reader._run = cut
    with pytest.raises(AccountsUnreadable):
        await reader.read(Rule())


def test_signature(getent: Getent) -> None:
    reader = AccountsReader(getent, getent.etc)
    first = reader.signature()
    assert reader.signature() == first
    (getent.etc / "new").write_text(ROOT)
    os.replace(getent.etc / "new", getent.etc / "passwd")
    assert reader.signature() != first
