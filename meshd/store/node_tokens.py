"""Generations of node tokens in the journal: the one that each machine has, and the one that it is to have.

The tokens themselves are not in it: they are derived. A machine without a row has generation 0 and shall keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.obs.log import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal


@dataclass(frozen=True, slots=True)
class TokenGeneration:
    """A machine's node token.

    Attributes:
        generation: of the token that opens something. The next one does too: only the machine can have it.
        wanted: the generation that it is to have; larger than `generation` during a renewal.
        renewed_at: when the machine used its present token for the first time.
        locked_out: the token was stopped at once, and the machine cannot speak to the head any more.
    """

    machine: str
    generation: int = 0
    wanted: int = 0
    renewed_at: datetime | None = None
    locked_out: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal that somebody asked for; how it stands follows from the machines' generations."""

    id: str
    started_at: datetime
    by: str
    machines: tuple[str, ...]
    compromised: bool = False


_GENERATION: Final = TypeAdapter(TokenGeneration)
_RENEWAL: Final = TypeAdapter(Renewal)


class NodeTokens:
    """The tables `node_tokens` and `token_renewals`. All methods raise StoreError when the journal fails."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, machine, record FROM node_tokens")
        found = journal.unreadable.sift("node_tokens", rows, _GENERATION.validate_json)
        self._tokens = {one.machine: one for _, one in found}
        rows = journal.rows("SELECT rowid, id, record FROM token_renewals ORDER BY rowid DESC LIMIT 1")
        renewals = [one for _, one in journal.unreadable.sift("token_renewals", rows, _RENEWAL.validate_json)]
        self.revision = 0
        """Grows with each change: what depends on the tokens is made again only then."""
        self.last: Renewal | None = renewals[0] if renewals else None

    def of(self, machine: str) -> TokenGeneration:
        """A machine's token."""
        return self._tokens.get(machine) or TokenGeneration(machine)

    def renewing(self) -> list[TokenGeneration]:
        """The machines that are to get another generation."""
        return [one for one in self._tokens.values() if one.wanted > one.generation]

    def locked_out(self) -> list[TokenGeneration]:
        """The machines whose token was stopped at once."""
        return [one for one in self._tokens.values() if one.locked_out]

    def begin(self, renewal: Renewal, tokens: Iterable[TokenGeneration], text: str) -> None:
        """Write a renewal with all its machines in one transaction."""
        tokens = list(tokens)
        with self._journal.writing(NewEvent(renewal.started_at, EventKind.NODE_TOKEN, text)) as db:
            record = redact(_RENEWAL.dump_json(renewal).decode())
            db.execute("INSERT INTO token_renewals (id, record) VALUES (?,?)", (renewal.id, record))
            db.executemany(_PUT, [(one.machine, _GENERATION.dump_json(one).decode()) for one in tokens])
        self._tokens.update({one.machine: one for one in tokens})
        self.last = renewal
        self.revision += 1

    def put(self, token: TokenGeneration, text: str, at: datetime) -> None:
        """Write one machine's token, with the event that records why."""
        with self._journal.writing(NewEvent(at, EventKind.NODE_TOKEN, text, token.machine)) as db:
            db.execute(_PUT, (token.machine, _GENERATION.dump_json(token).decode()))
        self._tokens[token.machine] = token
        self.revision += 1


_PUT: Final = (
    "INSERT INTO node_tokens (machine, record) VALUES (?,?) ON CONFLICT (machine) DO UPDATE SET record=excluded.record"
)
