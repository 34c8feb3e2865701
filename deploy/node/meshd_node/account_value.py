"""The head's users and groups as the head sends them, checked once more: a node gives no number of the system away."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from .errors import NotPossible

SYSTEM_BELOW = 1000
NUMBER_MAX = 2**32 - 3
NOBODY = (65534, 65535)
COUNT_MAX = 5000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,31}\Z")


def systems(number: int) -> bool:
    """Whether a uid or gid is the system's."""
    return number < SYSTEM_BELOW or number in NOBODY


class User(NamedTuple):
    """A user of the cluster. `subuid` and `subgid` are (first, count), or empty."""

    name: str
    uid: int
    gid: int
    gecos: str
    home: str
    shell: str
    subuid: tuple[int, ...] = ()
    subgid: tuple[int, ...] = ()


class Group(NamedTuple):
    """A group of users."""

    name: str
    gid: int
    members: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """What the node should have.

    Attributes:
        move: whether an account of the image that is in the way gets another number.
        shares: directories that are mounted from elsewhere: homes below are not the node's.
    """

    users: tuple[User, ...] = ()
    groups: tuple[Group, ...] = ()
    move: bool = True
    shares: tuple[str, ...] = ()


SLURMS = ("slurm", "munge")
"""The accounts of the daemons, which the agent makes by itself (users.py), with any number."""


def without_slurms(wanted: Wanted, numbers: Collection[int]) -> Wanted:
    """The same without the accounts and groups of slurm and munge, by name and by `numbers`."""
    return wanted._replace(
        users=tuple(one for one in wanted.users if one.name not in SLURMS and one.uid not in numbers),
        groups=tuple(one for one in wanted.groups if one.name not in SLURMS and one.gid not in numbers),
    )


def read(value: Mapping[str, Any]) -> Wanted:
    """The value of the section.

    Raises:
        NotPossible: the head sent something that no node does. Nothing of it is used.
    """
    try:
        wanted = Wanted(
            tuple(_user(one) for one in value["users"]),
            tuple(_group(one) for one in value["groups"]),
            value.get("image_accounts", "move") == "move",
            tuple(_path(path) for path in value.get("shares", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotPossible(
            f"the head's list of accounts cannot be used: {error}", "see docs/users.md", "accounts"
        ) from None
    users, groups = wanted.users, wanted.groups
    for numbers in ([one.uid for one in users], [one.gid for one in groups]):
        _unique("number", numbers)
    for names in ([one.name for one in users], [one.name for one in groups]):
        _unique("name", names)
    return wanted


def _unique(what: str, values: list[Any]) -> None:
    if len(values) > COUNT_MAX or len(set(values)) != len(values):
        raise NotPossible(
            f"the head's list of accounts has a {what} twice, or too many", "see docs/users.md", "accounts"
        )


def _user(one: Mapping[str, Any]) -> User:
    gid = int(one["gid"])
    if not 0 < gid <= NUMBER_MAX:
        raise ValueError(f"group number {gid}")
    return User(
        _name(one["name"]), _number(one["uid"]), gid, _text(one["gecos"]), _path(one["home"]), _path(one["shell"]),
        _range(one.get("subuid", ())), _range(one.get("subgid", ())),
    )  # fmt: skip


def _group(one: Mapping[str, Any]) -> Group:
    return Group(_name(one["name"]), _number(one["gid"]), tuple(_name(name) for name in one["members"]))


def _name(value: Any) -> str:
    if not NAME.match(value):
        raise ValueError(f"name {value[:40]!r}")
    return str(value)


def _number(value: Any) -> int:
    if systems(int(value)) or int(value) > NUMBER_MAX:
        raise ValueError(f"number {value}, which is the system's")
    return int(value)


def _text(value: Any) -> str:
    if ":" in value or not value.isprintable() or len(value) > 200:
        raise ValueError(f"text {value[:40]!r}")
    return str(value)


def _path(value: Any) -> str:
    parts = _text(value.rstrip("/")).split("/")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError(f"path {value[:40]!r}")
    return "/".join(parts)


def _range(value: Any) -> tuple[int, ...]:
    if not value:
        return ()
    first, count = (int(number) for number in value)
    if not (first > 65_535 and count > 0 and first + count <= NUMBER_MAX):
        raise ValueError(f"subordinate numbers from {first}")
    return first, count
