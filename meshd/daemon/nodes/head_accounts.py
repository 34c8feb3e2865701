"""Keeps what is known of the head's accounts, and sees within a second when they change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from meshd.accounts.reader import AccountsUnreadable, Read, Signature
from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Check, ok, problem, warn
from meshd.plan.account_changes import Known, after
from meshd.plan.accounts import Accounts, Rule, as_lines, from_lines, may_be_user, regrouped
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock

log = structlog.get_logger(__name__)

LOOK_S = 1.0
READ_S = 30.0
"""Directory services change without a file that does."""
SETTLE_S = 0.3
"""useradd writes several files, one after the other."""
FRESH_S = 5.0
"""Accounts that were read so shortly before a job came are not read again for a user whom they do not have."""
KNOWN_WAIT_S = 5.0
"""So long the job of a user who is known waits for files that have changed to be read: a directory may not answer."""
NAMES_SHOWN = 5
FILE = "accounts.json"


class Reads(Protocol):
    """Reads the head's accounts."""

    def signature(self) -> Signature:
        """See AccountsReader."""
        ...

    async def read(self, rule: Rule) -> Read:
        """See AccountsReader."""
        ...


class HeadAccounts(Controller):
    """The users of the cluster, as they are believed to be.

    Args:
        reader: reads them.
        live: the settings.
        clock: time.
        state_dir: where the last list is kept, so that a restart while a directory service is away forgets nobody.
    """

    name = "accounts"

    def __init__(self, reader: Reads, live: LiveSettings, clock: Clock, state_dir: Path) -> None:
        super().__init__(clock)
        self._reader = reader
        self._live = live
        self._file = state_dir / FILE
        self._known = _load(self._file)
        self._read_from: tuple[Rule, Signature] | None = None
        self._read_s = 0.0
        self._done: tuple[Rule, Signature] | None = None
        self._done_s = 0.0
        self._again = False
        self._error = ""
        self._changed: Callable[[], None] = lambda: None
        self._groups_changed: Callable[[], None] = lambda: None

    def on_change(self, changed: Callable[[], None], groups_changed: Callable[[], None] = lambda: None) -> None:
        """Call `changed` after each change of `current`, and `groups_changed` when one who stays has other groups."""
        self._changed, self._groups_changed = changed, groups_changed

    @property
    def current(self) -> Accounts | None:
        """The users; None while nothing is known, which is not the same as nobody."""
        return self._known.accounts if self._known is not None else None

    @property
    def rule(self) -> Rule:
        """Which accounts are users, by the settings."""
        users = self._live.settings.users
        return Rule(users.group, users.uid_min, users.uid_max)

    def read_for(self, uid: int, since_s: float) -> bool:
        """Whether what is known of a job's user is as new as the job; if not, the accounts are read now.

        Args:
            uid: the user's number.
            since_s: when the job came, on the monotonic clock.
        """
        rule = self.rule
        if not may_be_user(uid, rule):
            return True
        same_files = self._done == (rule, self._reader.signature())
        if self._has(uid):
            if same_files or self._clock.monotonic_s() - since_s >= KNOWN_WAIT_S:
                return True
        elif same_files and self._done_s >= since_s - FRESH_S:
            return True
        self._again |= same_files  # a directory service may have the user by now
        self.wake()
        return False

    def uid_of(self, name: str) -> int | None:
        """The number of a user; None for one who is none."""
        users = self.current.users if self.current is not None else ()
        return next((user.uid for user in users if user.name == name), None)

    def _has(self, uid: int) -> bool:
        return self.current is not None and any(user.uid == uid for user in self.current.users)

    async def reconcile(self) -> float:
        """Read the accounts when a file or the settings changed, every READ_S, and for the user of a new job."""
        wanted = self.rule, self._reader.signature()
        now_s = self._clock.monotonic_s()
        if wanted != self._read_from or self._again or now_s - self._read_s >= READ_S:
            if self._read_from is not None and wanted != self._read_from:
                await self._clock.sleep(SETTLE_S)
            now_s = self._clock.monotonic_s()
            self._read_from, self._read_s = (self.rule, self._reader.signature()), now_s
            await self._read(self._read_from[0])
            self._done, self._done_s, self._again = self._read_from, now_s, False
        return LOOK_S

    async def _read(self, rule: Rule) -> None:
        try:
            found = await self._reader.read(rule)
        except AccountsUnreadable as error:
            if str(error) != self._error:
                log.warning("accounts_unreadable", reason=str(error))
            self._error = str(error)
            return
        self._error = ""
        before = self._known
        known = after(before, found.accounts, found.seen, self._clock.monotonic_s())
        same = before is not None and before.accounts == known.accounts
        self._known = replace(known, accounts=before.accounts) if before is not None and same else known
        if not same:
            accounts = known.accounts
            log.info("accounts", users=len(accounts.users), groups=len(accounts.groups))
            self._save(accounts)
            self._changed()
            if before is not None and regrouped(before.accounts, accounts):
                self._groups_changed()

    def _save(self, accounts: Accounts) -> None:
        try:
            write_atomic(self._file, json.dumps(as_lines(accounts)).encode())
        except OSError as error:
            log.warning("accounts_not_saved", file=str(self._file), reason=str(error))

    def problems(self) -> Iterable[ProblemView]:
        """Accounts that cannot be read, and those that are kept although the last read did not show them."""
        if self._error:
            cure = "see that `getent passwd` answers; the nodes keep the accounts that they have"
            yield problem(ProblemCode.ACCOUNTS_UNREADABLE, "warning", self._error, cure)
        if self._known is not None and self._known.held:
            yield problem(ProblemCode.ACCOUNTS_HELD, "warning", *_held(self._known, self._file))

    def checks(self) -> Iterable[Check]:
        """Whether the accounts are known."""
        yield Check(CheckName.ACCOUNTS, self._check)

    async def _check(self) -> CheckRow:
        if self._error:
            cure = "see that `getent passwd` answers"
            return warn(CheckName.ACCOUNTS, ProblemCode.ACCOUNTS_UNREADABLE, self._error, cure)
        if self._known is None:
            return warn(CheckName.ACCOUNTS, ProblemCode.ACCOUNTS_UNREADABLE, "not read yet", "ask again in a moment")
        if self._known.held:
            return warn(CheckName.ACCOUNTS, ProblemCode.ACCOUNTS_HELD, *_held(self._known, self._file))
        accounts = self._known.accounts
        text = f"{len(accounts.users)} users, {len(accounts.groups)} groups"
        if accounts.left_out:
            first = accounts.left_out[0]
            more = f", and {len(accounts.left_out) - 1} more" if len(accounts.left_out) > 1 else ""
            text += f"; not on nodes: {first.name} ({first.why}){more}"
            return warn(CheckName.ACCOUNTS, ProblemCode.ACCOUNTS_LEFT_OUT, text, "docs/users.md says which are users")
        return ok(CheckName.ACCOUNTS, text)


def _held(known: Known, file: Path) -> tuple[str, str]:
    """What is kept, and what to do."""
    names = ", ".join(known.held[:NAMES_SHOWN]) + (", ..." if len(known.held) > NAMES_SHOWN else "")
    if known.held_network:
        text = f"the directory service shows no account any more; kept on the nodes: {names}"
        return text, f"repair it; if they were removed: stop meshd, remove {file}, start meshd"
    text = f"more than half of /etc/passwd is gone at once; kept on the nodes for 10 min: {names}"
    return text, "restore /etc/passwd if that was not intended"


def _load(file: Path) -> Known | None:
    try:
        accounts = from_lines(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("accounts_not_loaded", file=str(file), reason=str(error))
        return None
    return Known(accounts)
