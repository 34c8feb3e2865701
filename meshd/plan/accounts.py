"""Which accounts of the head are users of the cluster, and what every node gets of them. PURE.

The lines are those of passwd(5), group(5) and subuid(5), as `getent` prints them or as the files have them.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SYSTEM_BELOW = 1000
"""Numbers below are the system's own on every distribution. No node takes one from the head."""

USERS_MAX = 5000
"""A longer list would be too much for each poll of each node."""
GROUPS_MAX = 5000
PATH_CHARS_MAX = 255
GECOS_CHARS_MAX = 200
LEFT_OUT_MAX = 200

NOBODY = frozenset({65534, 65535, 4294967294, 4294967295})
"""nobody, and the numbers that mean "no id" to the kernel."""

NO_LOGIN = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown", "git-shell"})
"""Shells that let nobody in, by the last part of their path."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,31}\Z")
"""useradd's names, and those of directories (`anna@example.org`). A name of digits alone would be taken for a uid."""

COMPUTED_FIRST = 600_100_000
"""Above useradd's own subordinate ranges (SUB_UID_MAX in login.defs)."""
COMPUTED_COUNT = 65_536
COMPUTED_PLACES = 23_000
"""Places above that, below 2^31."""


@dataclass(frozen=True, slots=True)
class Range:
    """Subordinate uids or gids, for rootless containers."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class User:
    """A user of the cluster, as on the head.

    Attributes:
        gid: of the primary group.
        subuid, subgid: subordinate numbers; None: one is computed.
        local: whether the head's own /etc/passwd has the account; otherwise a directory service has it.
    """

    name: str
    uid: int
    gid: int
    gecos: str
    home: str
    shell: str
    subuid: Range | None = None
    subgid: Range | None = None
    local: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A group with at least one user of the cluster: as the primary group of one, or with one as a member."""

    name: str
    gid: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An account or a group that no node gets, although it looks like a user's."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Accounts:
    """The users and their groups, by number."""

    users: tuple[User, ...] = ()
    groups: tuple[Group, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """Which accounts are users: `[users]` of the settings."""

    group: str = ""
    uid_min: int = SYSTEM_BELOW
    uid_max: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Raw:
    """What was read on the head.

    Attributes:
        passwd, group: lines of all accounts and groups that could be listed.
        members: with `Rule.group`: the names of its members; those whose primary group it is come in addition.
        member_of: with `Rule.group`: name to gids, as a directory service knows them; None: `group` has all members.
        local: names in the head's own /etc/passwd.
        subuid, subgid: lines.
    """

    passwd: Sequence[str]
    group: Sequence[str]
    members: frozenset[str] = frozenset()
    member_of: Mapping[str, Sequence[int]] | None = None
    local: frozenset[str] = frozenset()
    subuid: Sequence[str] = ()
    subgid: Sequence[str] = ()


@dataclass(slots=True)
class _Found:
    users: dict[str, User] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, name: str, why: str) -> None:
        if len(self.left_out) < LEFT_OUT_MAX:
            self.left_out.append(LeftOut(_shown(name), why))


def may_be_user(uid: int, rule: Rule) -> bool:
    """Whether a user of the cluster may have this number: it is in the range, and not the system's."""
    return max(rule.uid_min, SYSTEM_BELOW) <= uid <= rule.uid_max and uid not in NOBODY


def regrouped(before: Accounts, after: Accounts) -> bool:
    """Whether an account that is in both has other groups in `after`."""
    old, new = gids_of(before), gids_of(after)
    return any(old[name] != new[name] for name in old.keys() & new.keys())


def gids_of(accounts: Accounts) -> Mapping[str, frozenset[int]]:
    """Name to the numbers of a user's groups."""
    found = {user.name: {user.gid} for user in accounts.users}
    for group in accounts.groups:
        for name in group.members:
            if name in found:
                found[name].add(group.gid)
    return {name: frozenset(gids) for name, gids in found.items()}


def choose(raw: Raw, rule: Rule) -> Accounts:
    """The users of the cluster and their groups, in a stable order. The first of two with one name or number counts."""
    found = _Found()
    groups = list(_groups(raw.group))
    gid = next((group.gid for group in groups if group.name == rule.group), None) if rule.group else None
    for line in raw.passwd:
        user = _user(line, raw, found, rule, gid)
        if user is None:
            continue
        if user.uid in found.names:
            if found.names[user.uid] != user.name:
                found.leave_out(user.name, f"it has the number {user.uid}, as {found.names[user.uid]} has")
        elif len(found.users) >= USERS_MAX:
            found.leave_out(user.name, f"there are more than {USERS_MAX} users")
        else:
            found.names[user.uid] = user.name
            found.users.setdefault(user.name, user)
    users = with_ranges(sorted(found.users.values(), key=lambda user: user.uid), raw)
    return Accounts(users, tuple(_of_users(groups, users, raw, found)), tuple(found.left_out))


def _user(line: str, raw: Raw, found: _Found, rule: Rule, gid: int | None) -> User | None:
    """The user in a line; None for an account that is none."""
    fields = line.rstrip("\n").split(":")
    if len(fields) != 7 or not _number(fields[2]) or not _number(fields[3]):
        return None
    name, uid, primary = fields[0], int(fields[2]), int(fields[3])
    shell = fields[6] or "/bin/sh"
    if not may_be_user(uid, rule):
        return None
    if shell.rpartition("/")[2] in NO_LOGIN or name in found.users:
        return None
    if rule.group and name not in raw.members and primary != gid:
        return None
    why = _unusable(name, primary, fields[5], shell)
    if why:
        found.leave_out(name, why)
        return None
    return User(name, uid, primary, _gecos(fields[4]), fields[5].rstrip("/"), shell, local=name in raw.local)


def _unusable(name: str, gid: int, home: str, shell: str) -> str:
    if not NAME.match(name):
        return "its name has characters that not every node takes"
    if gid == 0 or gid in NOBODY:
        return f"its primary group has the number {gid}"
    if not usable_path(home):
        return f"its home {_shown(home)!r} is not a path that a node can have"
    if not usable_path(shell):
        return f"its shell {_shown(shell)!r} is not a path that a node can have"
    return ""


def usable_path(path: str) -> bool:
    """Whether it is absolute, below `/`, without detours, and fits into a line of passwd."""
    parts = path.rstrip("/").split("/")
    return (
        len(path) <= PATH_CHARS_MAX
        and len(parts) > 1
        and parts[0] == ""
        and all(part not in ("", ".", "..") for part in parts[1:])
        and path.isprintable()
        and ":" not in path
    )


def _gecos(text: str) -> str:
    return "".join(char for char in text if char.isprintable() and char != ":")[:GECOS_CHARS_MAX]


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:64]


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _groups(lines: Iterable[str]) -> Iterable[Group]:
    for line in lines:
        fields = line.rstrip("\n").split(":")
        if len(fields) == 4 and _number(fields[2]):
            yield Group(fields[0], int(fields[2]), tuple(name for name in fields[3].split(",") if name))


def _of_users(groups: Iterable[Group], users: Sequence[User], raw: Raw, found: _Found) -> list[Group]:
    """The groups that users are in, without those of the system."""
    names, primary = {user.name for user in users}, {user.gid for user in users}
    more: dict[int, set[str]] = {}
    for name, gids in (raw.member_of or {}).items():
        for gid in gids:
            more.setdefault(gid, set()).add(name)
    taken: dict[int, Group] = {}
    for group in groups:
        if group.gid < SYSTEM_BELOW or group.gid in NOBODY or group.gid in taken:
            continue
        members = names & {*group.members, *more.get(group.gid, ())}
        if not members and group.gid not in primary:
            continue
        if not NAME.match(group.name):
            found.leave_out(group.name, "this group's name has characters that not every node takes")
        elif len(taken) < GROUPS_MAX and group.name not in {one.name for one in taken.values()}:
            taken[group.gid] = Group(group.name, group.gid, tuple(sorted(members)))
    return [taken[gid] for gid in sorted(taken)]


def with_ranges(users: Sequence[User], raw: Raw) -> tuple[User, ...]:
    """The users with their subordinate numbers: the head's own, and else computed ones that no other user has.

    A range never holds the number of an account or a group: whoever has a range can become each number in it, in a
    container, and so read the files of that account. Directory services give numbers up to 2,000,200,000.
    """
    known_uids = _numbers(raw.passwd, 2)
    known_gids = sorted({*_numbers(raw.group, 2), *_numbers(raw.passwd, 3)})
    uids, gids = _ranges(raw.subuid, known_uids), _ranges(raw.subgid, known_gids)
    taken = _places(known_uids, known_gids, (*uids.values(), *gids.values()))
    ranged = []
    for user in users:
        own_uids = uids.get(user.name) or uids.get(str(user.uid))
        own_gids = gids.get(user.name) or gids.get(str(user.uid))
        place = user.uid % COMPUTED_PLACES
        for _ in range(COMPUTED_PLACES):
            if place not in taken:
                break
            place = (place + 1) % COMPUTED_PLACES
        else:
            ranged.append(replace(user, subuid=own_uids, subgid=own_gids))
            continue
        taken.add(place)
        computed = Range(COMPUTED_FIRST + place * COMPUTED_COUNT, COMPUTED_COUNT)
        ranged.append(replace(user, subuid=own_uids or computed, subgid=own_gids or computed))
    return tuple(ranged)


def _numbers(lines: Iterable[str], field_at: int) -> list[int]:
    """The numbers in a field of the lines of passwd or group, in order."""
    rows = (line.split(":") for line in lines)
    return sorted({int(row[field_at]) for row in rows if len(row) > field_at and _number(row[field_at])})


def _places(uids: Sequence[int], gids: Sequence[int], ranges: Iterable[Range]) -> set[int]:
    """The places of computed ranges that hold a known number, or a number of one of these ranges."""
    end = COMPUTED_FIRST + COMPUTED_PLACES * COMPUTED_COUNT
    found = {_place(one) for one in (*uids, *gids) if COMPUTED_FIRST <= one < end}
    for one in ranges:
        first, last = max(one.first, COMPUTED_FIRST), min(one.first + one.count, end) - 1
        if first <= last:
            found.update(range(_place(first), _place(last) + 1))
    return found


def _place(number: int) -> int:
    return (number - COMPUTED_FIRST) // COMPUTED_COUNT


def _ranges(lines: Iterable[str], known: Sequence[int]) -> dict[str, Range]:
    """Name or number to its first range. One that reaches into the system's, or into `known` numbers, is none."""
    found: dict[str, Range] = {}
    for line in lines:
        fields = line.rstrip("\n").split(":")
        if len(fields) != 3 or not _number(fields[1]) or not _number(fields[2]):
            continue
        first, count = int(fields[1]), int(fields[2])
        if first > 65_535 and count > 0 and first + count <= 2**32 - 1 and not _holds(first, count, known):
            found.setdefault(fields[0], Range(first, count))
    return found


def _holds(first: int, count: int, known: Sequence[int]) -> bool:
    at = bisect_left(known, first)
    return at < len(known) and known[at] < first + count


def document(accounts: Accounts) -> dict[str, Any]:
    """What a node gets, as JSON values; the same for the same accounts."""
    return {
        "users": [
            {
                "name": user.name, "uid": user.uid, "gid": user.gid, "gecos": user.gecos, "home": user.home,
                "shell": user.shell, "subuid": _pair(user.subuid), "subgid": _pair(user.subgid),
            }
            for user in accounts.users
        ],
        "groups": [
            {"name": group.name, "gid": group.gid, "members": list(group.members)} for group in accounts.groups
        ],
    }  # fmt: skip


def as_lines(accounts: Accounts) -> dict[str, list[str]]:
    """The accounts as lines of passwd and the like: what `from_lines` reads."""
    users = accounts.users
    return {
        "passwd": [f"{u.name}:x:{u.uid}:{u.gid}:{u.gecos}:{u.home}:{u.shell}" for u in users],
        "group": [f"{one.name}:x:{one.gid}:{','.join(one.members)}" for one in accounts.groups],
        "local": [user.name for user in users if user.local],
        "subuid": [f"{u.name}:{u.subuid.first}:{u.subuid.count}" for u in users if u.subuid],
        "subgid": [f"{u.name}:{u.subgid.first}:{u.subgid.count}" for u in users if u.subgid],
    }


def from_lines(lines: Mapping[str, Sequence[str]]) -> Accounts:
    """The accounts that `as_lines` wrote, with all checks."""
    raw = Raw(
        lines["passwd"], lines["group"], local=frozenset(lines["local"]), subuid=lines["subuid"],
        subgid=lines["subgid"],
    )  # fmt: skip
    return choose(raw, Rule(uid_max=2**32 - 1))


def _pair(numbers: Range | None) -> list[int]:
    return [numbers.first, numbers.count] if numbers else []


def digest(accounts: Accounts) -> str:
    """Changes exactly when `document` changes."""
    return hashlib.sha256(json.dumps(document(accounts), sort_keys=True).encode()).hexdigest()
