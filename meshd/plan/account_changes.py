"""What is believed of the head's accounts after each time they were read. PURE.

An account that a read does not show may be removed, or its source may not answer: a directory service that is down
looks like an empty one, and so does a file that was cut off. What is unknown is not absent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from meshd.plan.accounts import GROUPS_MAX, USERS_MAX, Accounts, Group, Range, User

FEW: Final = 4
"""This number of local accounts may go at once."""
CUT_OFF_S: Final = 600.0
"""More than half of the local accounts, gone at once, are believed to be gone when that lasts so long."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is believed.

    Attributes:
        accounts: as the nodes get them.
        held: names that the last read did not show, and that are kept.
        held_network: whether a directory service that shows no account is why; otherwise /etc/passwd is.
        since_s: since when local accounts are held, on the monotonic clock.
    """

    accounts: Accounts
    held: tuple[str, ...] = ()
    held_network: bool = False
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What else a read showed.

    Attributes:
        names: of all accounts, users or not: such an account is there, whatever became of it.
        members: of the group of `[users]`; None without such a group.
        gid: of that group.
    """

    names: frozenset[str]
    members: frozenset[str] | None = None
    gid: int = -1


def after(known: Known | None, read: Accounts, seen: Seen, now_s: float) -> Known:
    """What is believed after a read that worked.

    Args:
        known: what was believed; None: nothing was known.
        read: the users that were read.
        seen: what else was read.
        now_s: on the monotonic clock.
    """
    if known is None:
        return Known(read)
    shown = {user.name for user in read.users} | seen.names
    gone = [user for user in known.accounts.users if user.name not in shown]
    local = [user for user in gone if user.local]
    answers = any(not user.local for user in read.users)
    held = [user for user in gone if not user.local and _unknown(user, seen, answers)]
    before = sum(user.local for user in known.accounts.users)
    since_s = known.since_s or now_s
    cut_off = len(local) > FEW and len(local) * 2 > before
    if cut_off and now_s - since_s < CUT_OFF_S:
        held += local
    else:
        since_s = 0.0
    held = _free(held, read)
    return Known(
        _joined(read, known.accounts, held),
        tuple(sorted(user.name for user in held)),
        any(not user.local for user in held),
        since_s,
    )


def _unknown(user: User, seen: Seen, answers: bool) -> bool:
    """Whether nothing says that an account of a directory service was removed, or taken out of the group."""
    if seen.members is None:
        return not answers
    return user.name in seen.members or (not answers and user.gid == seen.gid)


def _free(held: list[User], read: Accounts) -> list[User]:
    """Those whose number no other account has now, as many as there is room for: no node takes more users."""
    taken = {user.uid for user in read.users}
    return [user for user in held if user.uid not in taken][: max(USERS_MAX - len(read.users), 0)]


def _apart(held: list[User], read: Accounts) -> list[User]:
    """The same without subordinate numbers that another user has by now: who shares them can read files of both."""
    uids = _Ranges(user.subuid for user in read.users)
    gids = _Ranges(user.subgid for user in read.users)
    return [replace(user, subuid=uids.free(user.subuid), subgid=gids.free(user.subgid)) for user in held]


class _Ranges:
    """Ranges that somebody has; each question takes little time, since thousands are asked."""

    def __init__(self, ranges: Iterable[Range | None]) -> None:
        there = sorted((one.first, one.first + one.count) for one in ranges if one)
        self._firsts = [first for first, _ in there]
        self._ends = list(accumulate((end for _, end in there), max))

    def free(self, one: Range | None) -> Range | None:
        """The range; None when somebody has a number in it."""
        if one is None:
            return None
        before = bisect_left(self._firsts, one.first + one.count)
        return None if before and self._ends[before - 1] > one.first else one


def _joined(read: Accounts, before: Accounts, held: list[User]) -> Accounts:
    if not held:
        return read
    names = {user.name for user in held}
    groups = {group.gid: group for group in read.groups}
    called = {group.name for group in read.groups}
    for group in before.groups:
        kept = names.intersection(group.members)
        needed = kept or any(user.gid == group.gid for user in held)
        if group.gid in groups:
            now = groups[group.gid]
            groups[group.gid] = replace(now, members=tuple(sorted({*now.members, *kept})))
        elif needed and group.name not in called and len(groups) < GROUPS_MAX:
            groups[group.gid] = Group(group.name, group.gid, tuple(sorted(kept)))
    users = tuple(sorted((*read.users, *_apart(held, read)), key=lambda user: user.uid))
    return Accounts(users, tuple(groups[gid] for gid in sorted(groups)), read.left_out)
