"""Puts the head's users and groups into the tables of this machine, and takes out those that are gone. PURE.

An account of the image may be in the way: it has a user's number, or a user's name with another number. With `move` it
gets out of the way: one that only has the number gets another number; one that has the name becomes the user's, as an
account of that name is on the head. Numbers below 1000 are the system's: such accounts and groups never change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .account_tables import NAMES, Account, GroupRow, Table, Tables, account, group
from .account_value import SLURMS, Group, User, Wanted, systems

FIELDS = {"passwd": 7, "group": 4}
FREE_FROM, FREE_TO = 59_999, 50_000
"""Where accounts and groups of the image go: the end of the numbers that useradd gives last."""

HARMLESS = ("users",)
"""System's groups without rights. Any other number of the head's may be `docker` or `disk` here."""

MOVE_CURE = 'set image_accounts = "move" in [users] of meshd.toml'
ACCOUNT_CURE = f"change the account's number in the image, or {MOVE_CURE}"
GROUP_CURE = f"change the group's number in the image, or {MOVE_CURE}"

Lines = Mapping[str, "list[str]"]
"""The lines of one account or group, by table."""

BLOCKS = "account_clash"
"""A user's number belongs to another account, which may have rights that the user must not have."""
LEFT_OUT = "account_left_out"
"""A user or group is not on the node as on the head, and no other has its number."""


class Renumbered(NamedTuple):
    """Other numbers for an account of the image: each the one before and the one after."""

    uid: tuple[int, int]
    gid: tuple[int, int]


@dataclass(frozen=True)
class Renumbering:
    """Accounts and groups of the image that get other numbers, by name: written down before that is begun.

    The tables are written one by one, group before passwd. Where that is cut off, an account may have the number of a
    group that has another one by now, and files of it may have their new owner already: the next merge ends it.
    """

    accounts: Mapping[str, Renumbered] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ours:
    """What was put into the tables, so that it can be taken out again.

    Attributes:
        users, groups: name to number.
        before_users, before_groups: lines of the image that an account or group took the place of.
        renumbering: what was begun, and is perhaps not done.
    """

    users: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    before_users: Mapping[str, Lines] = field(default_factory=dict)
    before_groups: Mapping[str, Lines] = field(default_factory=dict)
    renumbering: Renumbering = field(default_factory=Renumbering)


class Move(NamedTuple):
    """An account whose files change owner."""

    name: str
    home: str
    uid: tuple[int, int]
    gid: tuple[int, int]
    of_image: bool = True


class Clash(NamedTuple):
    """A user or group that could not be put there; `code` is BLOCKS or LEFT_OUT."""

    code: str
    text: str
    cure: str


@dataclass
class Merged:
    """The outcome.

    Attributes:
        renumbering: to be written down before `moves` and the tables are begun.
        moves: files to give to another number, before the tables are written.
        notes: what happened to accounts and groups of the image, for people.
        waiting: users that are removed when their last process has ended.
        gone: users that were removed, with their numbers.
        placed: the users that are there now, as on the head.
    """

    tables: Tables
    ours: Ours
    renumbering: Renumbering = field(default_factory=Renumbering)
    moves: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    gone: list[tuple[str, int]] = field(default_factory=list)
    placed: list[User] = field(default_factory=list)


def merge(tables: Tables, wanted: Wanted, ours: Ours, busy: Collection[int]) -> Merged:
    """The tables as they should be.

    Args:
        tables: as they are.
        wanted: the head's users and groups.
        ours: what an earlier merge put there.
        busy: uids that have a process on this machine.
    """
    work = _Merge(tables, wanted, ours, frozenset(busy))
    work.remove_users()
    work.finish()
    for user in wanted.users:
        work.place_user(user)
    work.remove_groups()
    for given in wanted.groups:
        work.place_group(given)
    for gid in sorted({user.gid for user in wanted.users} - {given.gid for given in wanted.groups}):
        if not systems(gid):
            work.check_primary(gid)
    return work.result()


def between(old: Ours, merged: Merged) -> Ours:
    """What is remembered while the tables are written: all that may be in them, so that a cut forgets nothing."""
    new = merged.ours
    return Ours(
        {**old.users, **new.users}, {**old.groups, **new.groups},
        {**old.before_users, **new.before_users}, {**old.before_groups, **new.before_groups}, merged.renumbering,
    )  # fmt: skip


class _Merge:
    def __init__(self, tables: Tables, wanted: Wanted, ours: Ours, busy: frozenset[int]) -> None:
        self.tables = {name: Table(tables.text(name), FIELDS.get(name, 0)) for name in NAMES}
        self.heads = {user.name for user in wanted.users} | ours.users.keys()
        self.wanted, self.ours, self.busy = wanted, ours, busy
        self.users, self.groups = dict(ours.users), dict(ours.groups)
        self.before_users, self.before_groups = dict(ours.before_users), dict(ours.before_groups)
        self.moves: dict[str, Move] = {}
        self.out = Merged(tables, ours)
        self.placed: set[str] = set()
        self.renumbered: dict[str, Account] = {}
        gids = {user.gid for user in wanted.users} | {given.gid for given in wanted.groups}
        self.begun, self.left = ours.renumbering, dict[str, Renumbered]()
        self.changed: dict[str, Renumbered] = {}
        self.moved_groups: dict[str, tuple[int, int]] = {}
        self.taken = gids | {user.uid for user in wanted.users}
        self.promised = {one.uid[1] for one in self.begun.accounts.values()} | {
            gid for _, gid in self.begun.groups.values()
        }

    # -- what was ours ------------------------------------------------------------------------------------------------

    def remove_users(self) -> None:
        """Take out users that are gone, or have another number, and have no process."""
        numbers = {user.name: user.uid for user in self.wanted.users}
        for name, uid in self.ours.users.items():
            row = self._account(name)
            if row is None or row.uid != uid:
                # somebody removed or changed it here, or an earlier merge was interrupted: passwd is written last
                self._take_back(name, ("shadow", "subuid", "subgid"), self.before_users)
                self.users.pop(name)
            elif numbers.get(name) == uid:
                continue
            elif uid in self.busy:
                self.out.waiting.append(name)
            else:
                if name in numbers:
                    self.renumbered[name] = row
                else:
                    self.out.gone.append((name, uid))
                self._take_back(name, ("passwd", "shadow", "subuid", "subgid"), self.before_users)
                self.users.pop(name)
                first = self._account(name)
                if first is not None:  # the image's own account, as it was
                    self._move(name, row, first.uid, first.gid)

    def remove_groups(self) -> None:
        """Take out groups that are gone, or have another number. Groups of waiting users wait too."""
        numbers = {one.name: one.gid for one in self.wanted.groups}
        rows = [self._account(name) for name in self.out.waiting]
        primary = {one.gid for one in rows if one is not None}
        for name, gid in self.ours.groups.items():
            row = self._group(name)
            if row is None or row.gid != gid:
                self._take_back(name, ("gshadow",), self.before_groups)
                self.groups.pop(name)
            elif numbers.get(name) != gid:
                waiting = [one for one in row.members if one in self.out.waiting]
                if waiting or gid in primary:
                    self._put_group(name, gid, waiting)
                    continue
                self._take_back(name, ("group", "gshadow"), self.before_groups)
                self.groups.pop(name)

    def _take_back(self, name: str, tables: Iterable[str], before: dict[str, Lines]) -> None:
        """Put back what the image had of an account or group."""
        lines = before.pop(name, {})
        for table in tables:
            if self.tables[table].there:
                self.tables[table].put(name, lines.get(table, []))

    def _keep_before(self, name: str, tables: Iterable[str], ours: Mapping[str, int], first: Mapping[str, Lines],
                     before: dict[str, Lines]) -> None:  # fmt: skip
        """Remember what the image has of an account or group. What an interrupted merge wrote is not the image's."""
        lines = first.get(name, {}) if name in ours else {table: self.tables[table].of(name) for table in tables}
        if any(lines.values()):
            before[name] = lines

    # -- what was begun -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End a renumbering of the image's accounts that an earlier merge began, as that one would have."""
        for name, gids in self.begun.groups.items():
            self._finish_group(name, gids)
        for name, one in self.begun.accounts.items():
            here = self._account(name)
            if here is not None and name not in self.users and not systems(here.uid):
                self._finish_account(here, one)

    def _finish_group(self, name: str, gids: tuple[int, int]) -> None:
        row = self._group(name)
        if row is None:
            return
        if name not in self.groups and self._begun_gid(row) and self._may_move_group(row):
            self._change("group", name, {2: str(gids[1])})
            self.moved_groups[name] = gids
        elif row.gid == gids[1]:
            self.moved_groups[name] = gids

    def _finish_account(self, here: Account, begun: Renumbered) -> None:
        uid, gid = here.uid, here.gid
        if gid == begun.gid[0] and begun.gid in self.moved_groups.values():
            gid = begun.gid[1]
        if self._may_have(here, begun):
            if uid in self.busy:
                self.left[here.name] = begun
            else:
                uid = begun.uid[1]
        if (uid, gid) != (here.uid, here.gid):
            self._move(here.name, here, uid, gid)
            self._change_account(here.name, uid, gid)
            self._note(f"account {here.name} of the image has the number {uid} and the group {gid} now: that was begun")

    def _may_have(self, here: Account, begun: Renumbered) -> bool:
        """Whether an account can get the number that was begun."""
        old, new = begun.uid
        return here.uid == old != new and new not in self.taken and not self.tables["passwd"].named(new)

    # -- users --------------------------------------------------------------------------------------------------------

    def place_user(self, user: User) -> None:
        """Give the node the user, unless something is in the way that must stay."""
        others = [name for name in self.tables["group"].named(user.gid) if name not in HARMLESS]
        if systems(user.gid) and others:
            self._clash(LEFT_OUT, f"user {user.name} has the primary group {user.gid}, which is the node's {others[0]}",
                        f"give {user.name} a primary group with a number from 1000 up on the head")  # fmt: skip
            return
        row = self._account(user.name)
        if user.name in self.out.waiting:
            return
        if row is not None and systems(row.uid):
            self._clash(LEFT_OUT, f"user {user.name}: the node has a system account of this name",
                        f"rename {user.name} on the head, or use an image without that account")  # fmt: skip
            return
        if row is not None and row.uid != user.uid and not self._may_move(row):
            self._clash(LEFT_OUT, f"user {user.name} has the number {user.uid}: on the node it has {row.uid}"
                        f"{self._why_not(row)}", ACCOUNT_CURE)  # fmt: skip
            return
        holders = self._holders(user)
        if any(one.name in self.users for one in holders) and user.name not in self.users:
            return  # a former user's processes still have the number
        stuck = [one for one in holders if not self._may_move(one)]
        if stuck:
            holder = stuck[0]
            self._clash(BLOCKS, f"the number {user.uid} of user {user.name} belongs to the account {holder.name}"
                        f"{self._why_not(holder)}", ACCOUNT_CURE)  # fmt: skip
            if user.name not in self.users:
                return
        else:
            for one in holders:
                self._move_away(one)
        self._put_user(user, row)

    def _holders(self, user: User) -> list[Account]:
        """Other accounts that have the user's number."""
        names = (name for name in self.tables["passwd"].named(user.uid) if name != user.name)
        return [row for row in map(self._account, names) if row is not None]

    def _may_move(self, row: Account) -> bool:
        return self.wanted.move and row.uid not in self.busy and row.name not in SLURMS

    def _why_not(self, row: Account) -> str:
        return ", which has processes" if self.wanted.move and row.uid in self.busy else ""

    def _put_user(self, user: User, row: Account | None) -> None:
        name = user.name
        if name not in self.users:
            self._keep_before(name, ("passwd", "shadow", "subuid", "subgid"), self.ours.users, self.ours.before_users,
                              self.before_users)  # fmt: skip
        if row is not None and name not in self.users and row.uid != user.uid:
            self._move(name, row, user.uid, user.gid)
            self._note(f"account {name} of the image has the number {user.uid} now, as on the head; it had {row.uid}")
        elif name in self.renumbered:
            self._move(name, self.renumbered[name], user.uid, user.gid, of_image=False)
        line = f"{name}:x:{user.uid}:{user.gid}:{user.gecos}:{user.home}:{user.shell}"
        self.tables["passwd"].put(name, [line])
        if self.tables["shadow"].there:
            self._lock(name)
        for table, numbers in (("subuid", user.subuid), ("subgid", user.subgid)):
            lines = [f"{name}:{numbers[0]}:{numbers[1]}"] if numbers else []
            self.tables[table].put(name, lines)
        self.users[name] = user.uid
        self.placed.add(name)
        self.out.placed.append(user)

    def _lock(self, name: str) -> None:
        """No password opens the account."""
        lines = self.tables["shadow"].of(name)
        parts = lines[0].split(":") if len(lines) == 1 else []
        if len(parts) != 9 or not parts[1].startswith(("!", "*")):
            self.tables["shadow"].put(name, [f"{name}:!:::::::"])

    def _move_away(self, row: Account) -> None:
        """Give an account of the image a free number: the one that an earlier merge began to give it, where it can."""
        begun = self.begun.accounts.get(row.name)
        uid = begun.uid[1] if begun is not None and self._may_have(row, begun) else self._free()
        self._move(row.name, row, uid, row.gid)
        self._change_account(row.name, uid, row.gid)
        self._note(f"account {row.name} of the image has the number {uid} now: a user has {row.uid}")

    def _move(self, name: str, row: Account, uid: int, gid: int, of_image: bool = True) -> None:
        first = self.moves.get(name)
        old_uid, old_gid = (first.uid[0], first.gid[0]) if first else (row.uid, row.gid)
        self.moves[name] = Move(name, row.home, (old_uid, uid), (old_gid, gid), of_image)

    def _change_account(self, name: str, uid: int, gid: int) -> None:
        row = self._account(name)
        if row is not None:
            first = self.changed.get(name, Renumbered((row.uid, row.uid), (row.gid, row.gid)))
            self.changed[name] = Renumbered((first.uid[0], uid), (first.gid[0], gid))
        self._change("passwd", name, {2: str(uid), 3: str(gid)})

    def _change(self, table: str, name: str, fields: Mapping[int, str]) -> None:
        """Change fields of the readable lines of a name."""
        lines = []
        for line in self.tables[table].of(name):
            parts = line.split(":")
            readable = len(parts) == FIELDS[table]
            lines.append(":".join(fields.get(at, part) if readable else part for at, part in enumerate(parts)))
        self.tables[table].put(name, lines)

    # -- groups -------------------------------------------------------------------------------------------------------

    def place_group(self, given: Group) -> None:
        """Give the node the group, unless something is in the way that must stay."""
        row = self._group(given.name)
        if row is not None and systems(row.gid):
            self._clash(LEFT_OUT, f"group {given.name}: the node has a system group of this name",
                        f"rename {given.name} on the head, or use an image without that group")  # fmt: skip
            return
        if given.name in self.groups and self.groups[given.name] != given.gid:
            return  # a former user's processes still have the old number
        names = [name for name in self.tables["group"].named(given.gid) if name != given.name]
        holders = [one for one in map(self._group, names) if one is not None]
        if any(one.name in self.groups for one in holders):
            return
        in_the_way = [*holders, *([row] if row is not None and row.gid != given.gid else [])]
        stuck = [one for one in in_the_way if not self._may_move_group(one)]
        if stuck:
            # Who has the number has the rights of the group that has it here: Slurm gives jobs their numbers.
            code = BLOCKS if stuck[0].gid == given.gid else LEFT_OUT
            self._clash(code, f"group {given.name} with the number {given.gid}: the node has {stuck[0].name} with "
                        f"{stuck[0].gid}", GROUP_CURE)  # fmt: skip
            return
        for one in holders:
            self._move_group(one, self._free_gid(one))
        if row is not None and row.gid != given.gid:
            self._follow(row.name, row.gid, given.gid)
            self._note(
                f"group {row.name} of the image has the number {given.gid} now, as on the head; it had {row.gid}"
            )
        if given.name not in self.groups:
            self._keep_before(given.name, ("group", "gshadow"), self.ours.groups, self.ours.before_groups,
                              self.before_groups)  # fmt: skip
        waiting = [name for name in (row.members if row else ()) if name in self.out.waiting]
        self._put_group(given.name, given.gid, [*(name for name in given.members if name in self.placed), *waiting])
        self.groups[given.name] = given.gid

    def check_primary(self, gid: int) -> None:
        """See that no group of the image has a primary group's number that has no name on the head."""
        others = [name for name in self.tables["group"].named(gid) if name not in self.groups]
        if others:
            self._clash(BLOCKS, f"the number {gid} of users' primary group belongs to the group {others[0]}",
                        f"make a group with the number {gid} on the head")  # fmt: skip

    def _may_move_group(self, row: GroupRow) -> bool:
        if systems(row.gid) or not self.wanted.move or row.name in SLURMS:
            return False
        return not any(systems(one.uid) or one.uid in self.busy for one in self._in(row.gid))

    def _in(self, gid: int) -> list[Account]:
        """The image's accounts whose primary group it is."""
        rows = map(self._account, self.tables["passwd"].names)
        return [one for one in rows if one is not None and one.gid == gid and one.name not in self.users]

    def _free_gid(self, row: GroupRow) -> int:
        """As an earlier merge began; for a group of one account's own: that account's new number, where it is free."""
        begun = self._begun_gid(row)
        if begun:
            return begun
        used = self.tables["group"].numbers | self.taken
        own = self._account(row.name)
        return own.uid if own is not None and FREE_TO <= own.uid <= FREE_FROM and own.uid not in used else self._free()

    def _begun_gid(self, row: GroupRow) -> int:
        """The free number that an earlier merge began to give a group; 0 for none, or where it is not free any more."""
        old, new = self.begun.groups.get(row.name, (0, 0))
        used = self.tables["group"].numbers | self.taken
        return new if old == row.gid and FREE_TO <= new <= FREE_FROM and new not in used else 0

    def _move_group(self, row: GroupRow, gid: int) -> None:
        self._change("group", row.name, {2: str(gid)})
        self._follow(row.name, row.gid, gid)
        self._note(f"group {row.name} of the image has the number {gid} now: a group of users has {row.gid}")

    def _follow(self, name: str, old: int, new: int) -> None:
        """The image's accounts of a group that moves go along."""
        self.moved_groups[name] = (self.moved_groups.get(name, (old, old))[0], new)
        for row in self._in(old):
            self._move(row.name, row, row.uid, new)
            self._change_account(row.name, row.uid, new)

    def _put_group(self, name: str, gid: int, members: Iterable[str]) -> None:
        """Members that are not the head's users stay."""
        row = self._group(name)
        given = dict.fromkeys(members)
        kept = [one for one in (row.members if row else ()) if one in given or one not in self.heads]
        names = ",".join(dict.fromkeys([*kept, *given]))
        lines = self.tables["group"].of(name)
        parts = lines[0].split(":") if lines and lines[0].count(":") == 3 else [name, "x", "", ""]
        self.tables["group"].put(name, [f"{name}:{parts[1]}:{gid}:{names}"])
        if self.tables["gshadow"].there:
            lines = self.tables["gshadow"].of(name)
            parts = lines[0].split(":") if lines and lines[0].count(":") == 3 else [name, "!", "", ""]
            self.tables["gshadow"].put(name, [f"{name}:{parts[1]}:{parts[2]}:{names}"])

    # -- common -------------------------------------------------------------------------------------------------------

    def _free(self) -> int:
        """A number that neither an account nor a group has, here or on the head."""
        used = self.tables["passwd"].numbers | self.tables["group"].numbers | self.taken | self.promised
        return next(number for number in range(FREE_FROM, 0, -1) if number not in used)

    def _account(self, name: str) -> Account | None:
        return account(self.tables["passwd"], name)

    def _group(self, name: str) -> GroupRow | None:
        return group(self.tables["group"], name)

    def _clash(self, code: str, text: str, cure: str) -> None:
        self.out.clashes.append(Clash(code, text, cure))

    def _note(self, text: str) -> None:
        self.out.notes.append(text)

    def result(self) -> Merged:
        """All of it."""
        for name in NAMES:
            text = self.tables[name].text
            if text is not None and text != self.out.tables.text(name):
                self.out.tables = self.out.tables.with_text(name, text)
        begun = {name: one for name, one in self.left.items() if name not in self.users}
        self.out.ours = Ours(self.users, self.groups, self.before_users, self.before_groups, Renumbering(begun))
        changed = {name: one for name, one in self.changed.items() if name not in self.users}
        self.out.renumbering = Renumbering({**changed, **begun}, self.moved_groups)
        self.out.moves = [
            move for move in self.moves.values() if move.uid[0] != move.uid[1] or move.gid[0] != move.gid[1]
        ]
        return self.out
