from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

import pytest

from meshd.api.auth import Authorizer, Peer, SystemAccounts, peer_of


@dataclass
class Accounts:
    """An account database in memory."""

    users: dict[int, tuple[str, int]] = field(default_factory=dict)
    members: dict[str, frozenset[int]] = field(default_factory=dict)
    gids: dict[str, int] = field(default_factory=dict)

    def user(self, uid: int) -> tuple[str, int] | None:
        return self.users.get(uid)

    def groups(self, name: str, gid: int) -> frozenset[int]:
        return self.members.get(name, frozenset()) | {gid}

    def gid(self, group: str) -> int | None:
        return self.gids.get(group)


ACCOUNTS = Accounts(
    users={0: ("root", 0), 400: ("slurm", 400), 1000: ("alice", 1000), 1001: ("bob", 900), 1002: ("eve", 1002)},
    members={"alice": frozenset({900, 27})},
    gids={"meshd": 900},
)


@pytest.mark.parametrize(
    ("uid", "gid", "user", "may_write"),
    [
        (0, 0, "root", True),
        (400, 400, "slurm", True),
        (1000, 1000, "alice", True),
        (1001, 1001, "bob", True),
        (1002, 1002, "eve", False),
        (1002, 900, "eve", True),
        (7777, 7777, "uid 7777", False),
        (65534, 65534, "uid 65534", False),
    ],
)
def test_roles(uid: int, gid: int, user: str, may_write: bool) -> None:
    actor = Authorizer("meshd", own_uid=400, accounts=ACCOUNTS).actor(Peer(pid=9, uid=uid, gid=gid))
    assert (actor.user, actor.may_write, actor.uid) == (user, may_write, uid)


def test_without_the_group_only_root_and_the_daemon_write() -> None:
    authorizer = Authorizer("absent", own_uid=400, accounts=ACCOUNTS)
    assert [authorizer.actor(Peer(1, uid, uid)).may_write for uid in (0, 400, 1000, 1001)] == [True, True, False, False]


def test_unknown_is_read_only() -> None:
    actor = Authorizer("meshd", own_uid=0, accounts=ACCOUNTS).actor(None)
    assert not actor.may_write
    assert actor.uid == -1


def test_the_kernel_tells_the_peer() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert peer_of(left) == Peer(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())
    with socket.socket(socket.AF_UNIX) as alone:
        assert peer_of(alone) is None
    assert peer_of(None) is None


def test_system_accounts_know_root() -> None:
    accounts = SystemAccounts()
    assert accounts.user(0) == ("root", 0)
    assert accounts.user(3_999_999) is None
    assert accounts.gid("no-such-group-here") is None
    assert 0 in accounts.groups("root", 0)
