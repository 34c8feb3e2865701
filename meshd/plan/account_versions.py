"""Since which version of the head's accounts each user is as now. PURE.

A node that holds that version, or a newer one, runs the user's jobs as the head would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshd.plan.accounts import Accounts, User, gids_of

FIRST = 0
"""What was known when meshd began. Nodes that have not told yet are taken to hold it."""


@dataclass(frozen=True, slots=True)
class AccountVersions:
    """The versions of one life of meshd.

    Attributes:
        number: the present one.
        since: uid to the version with which the user became as now.
        users: uid to the user, and the numbers of the user's groups.
    """

    number: int = FIRST
    since: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[int, tuple[User, frozenset[int]]] = field(default_factory=dict)


def versions_of(accounts: Accounts) -> AccountVersions:
    """The first version."""
    users = _users(accounts)
    return AccountVersions(FIRST, dict.fromkeys(users, FIRST), users)


def next_version(before: AccountVersions, accounts: Accounts) -> AccountVersions:
    """After another look at the accounts; the same when nothing has changed that a user's jobs depend on."""
    users = _users(accounts)
    if users == before.users:
        return before
    number = before.number + 1
    since = {uid: before.since[uid] if before.users.get(uid) == one else number for uid, one in users.items()}
    return AccountVersions(number, since, users)


def _users(accounts: Accounts) -> dict[int, tuple[User, frozenset[int]]]:
    gids = gids_of(accounts)
    return {user.uid: (user, gids[user.name]) for user in accounts.users}
