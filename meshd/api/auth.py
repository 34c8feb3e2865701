"""Who asks, and whether they may write: from the peer credentials of the unix socket and the account database."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_UCRED = struct.Struct("iII")
_NO_UID = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Actor:
    """The process at the other end of the socket; uid -1 when the kernel does not say."""

    uid: int
    gid: int
    pid: int
    user: str
    may_write: bool


UNKNOWN_ACTOR = Actor(uid=-1, gid=-1, pid=0, user="unknown", may_write=False)


@dataclass(frozen=True, slots=True)
class Peer:
    """SO_PEERCRED: what the process was when it connected."""

    pid: int
    uid: int
    gid: int


class HasSockopt(Protocol):
    """A socket, or what asyncio shows of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As socket.socket.getsockopt."""
        ...


class Accounts(Protocol):
    """The account database."""

    def user(self, uid: int) -> tuple[str, int] | None:
        """Name and primary group; None when there is no such account."""
        ...

    def groups(self, name: str, gid: int) -> frozenset[int]:
        """All groups of a user, the primary one included."""
        ...

    def gid(self, group: str) -> int | None:
        """A group's number; None when there is no such group."""
        ...


class SystemAccounts:
    """NSS: files, LDAP, whatever this machine uses. Calls may block."""

    def user(self, uid: int) -> tuple[str, int] | None:
        """Name and primary group."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return None
        return entry.pw_name, entry.pw_gid

    def groups(self, name: str, gid: int) -> frozenset[int]:
        """All groups of a user."""
        return frozenset(os.getgrouplist(name, gid))

    def gid(self, group: str) -> int | None:
        """A group's number."""
        try:
            return grp.getgrnam(group).gr_gid
        except KeyError:
            return None


def peer_of(sock: HasSockopt | None) -> Peer | None:
    """The peer of a connected unix socket; None when the kernel does not say."""
    if sock is None:
        return None
    try:
        pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError:
        return None
    # A uid of another user namespace arrives as the overflow uid, nobody, which may only read.
    # The pid is 0 for a process of another pid namespace.
    return None if uid == _NO_UID else Peer(pid=pid, uid=uid, gid=gid)


def uid_of(transport: asyncio.BaseTransport) -> int:
    """The user at the other end; -1 when the kernel does not say."""
    peer = peer_of(transport.get_extra_info("socket"))
    return peer.uid if peer else -1


class Authorizer:
    """Says who may write: root, the daemon's own user and the members of one group."""

    def __init__(self, group: str, *, own_uid: int, accounts: Accounts | None = None) -> None:
        self.group = group
        self._own_uid = own_uid
        self._accounts = accounts or SystemAccounts()

    def actor(self, peer: Peer | None) -> Actor:
        """The peer, its name and whether it may write. May block on the account database."""
        if peer is None:
            return UNKNOWN_ACTOR
        account = self._accounts.user(peer.uid)
        may_write = peer.uid in (0, self._own_uid) or self._in_group(peer, account)
        user = account[0] if account else f"uid {peer.uid}"
        return Actor(uid=peer.uid, gid=peer.gid, pid=peer.pid, user=user, may_write=may_write)

    def _in_group(self, peer: Peer, account: tuple[str, int] | None) -> bool:
        group_id = self._accounts.gid(self.group)
        if group_id is None:
            return False
        if peer.gid == group_id:
            return True
        return account is not None and group_id in self._accounts.groups(*account)
