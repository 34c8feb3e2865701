"""Which machines have which of the head's users, by what their agents said of the section `accounts`."""

from __future__ import annotations

from collections.abc import Collection

from meshd.model.node_settings import ReportedSection, SectionState
from meshd.plan.account_versions import FIRST, AccountVersions, next_version, versions_of
from meshd.plan.accounts import Accounts

SECTION = "accounts"
DIGESTS_MAX = 64
"""Digests that are remembered. A machine with an older one is sent the present accounts with its next poll."""
NONE_KNOWN = FIRST - 1
"""The version of a digest that nobody remembers."""


class UsersOnNodes:
    """Remembers it. A machine whose agent has not called since meshd began is taken to have whom meshd knew then."""

    def __init__(self) -> None:
        self._versions: AccountVersions | None = None
        self._digests: dict[str, int] = {}
        self._has: dict[str, int] = {}
        self._old_agents: set[str] = set()

    def changed(self, accounts: Accounts | None) -> None:
        """Take the accounts that nodes are to have from now on; None: not known."""
        if accounts is not None:
            self._versions = next_version(self._versions, accounts) if self._versions else versions_of(accounts)

    def sent_as(self, digest: str) -> None:
        """Remember the digest by which machines say that they have the present accounts."""
        if self._versions is not None:
            self._digests.pop(digest, None)
            self._digests[digest] = self._versions.number
            while len(self._digests) > DIGESTS_MAX:
                del self._digests[next(iter(self._digests))]

    def told(self, machine: str, section: ReportedSection | None) -> None:
        """Take what an agent says. While it applies a section, it has what it had before."""
        if section is not None and section.state is SectionState.APPLIED:
            self._has[machine] = self._digests.get(section.digest, NONE_KNOWN)

    def unknown_on(self, machine: str) -> None:
        """Take that an agent is too old to say."""
        self._old_agents.add(machine)

    def has(self, machine: str, uid: int) -> bool:
        """Whether a machine has a user as on the head; True for a number that no user of the cluster has."""
        since = self._versions.since.get(uid) if self._versions is not None else None
        return since is None or machine in self._old_agents or since <= self._has.get(machine, FIRST)

    def keep(self, alive: Collection[str]) -> None:
        """Forget the machines that are no more."""
        self._old_agents.intersection_update(alive)
        for name in self._has.keys() - set(alive):
            del self._has[name]
