"""Join tickets in the journal: bound once, closed for good, and closed when a journal of an older form is read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pydantic import TypeAdapter

from meshd.model.machine import Machine, Phase
from meshd.store.join_tokens import JoinTokens
from meshd.store.journal import Journal
from meshd.store.migrations import MIGRATIONS
from tests.unit.worlds import NOW, machine

BEFORE_CLOSING = 5
"""The last form of the journal in which a join token could be used again."""


def test_the_first_device_keeps_the_ticket(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    tickets = JoinTokens(journal)
    assert (tickets.device("m"), tickets.closed("m")) == ("", False)
    assert tickets.bind("m", "n-1", NOW) == tickets.bind("m", "n-2", NOW) == "n-1"
    tickets.rebind("m", "n-3", NOW)
    assert tickets.device("m") == "n-3"
    journal.close()


def test_a_ticket_is_closed_once_and_a_later_device_does_not_open_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    tickets = JoinTokens(journal)
    tickets.close("m", "its node token was used", NOW)
    tickets.close("m", "its node token was used", NOW)
    assert len(journal.events()) == 1
    assert tickets.bind("m", "n-1", NOW) == "n-1"
    tickets.rebind("m", "n-2", NOW)
    assert tickets.closed("m")
    journal.close()
    again = Journal(tmp_path / "j.db")
    assert JoinTokens(again).closed("m")
    again.close()


def test_a_journal_of_an_older_form_closes_the_tickets_of_machines_that_were_nodes(tmp_path: Path) -> None:
    joining, proved = machine(Phase.CONFIGURING), machine(Phase.CONFIGURING, index=2, munge_ok=True)
    machines = [joining, proved, machine(Phase.READY, index=3), machine(Phase.TERMINATING, index=4)]
    db = sqlite3.connect(tmp_path / "j.db")
    for statement in (statement for form in MIGRATIONS[:BEFORE_CLOSING] for statement in form):
        db.execute(statement)
    for one in machines:
        record = TypeAdapter(Machine).dump_json(one).decode()
        columns = (one.name, one.pool, one.slot, one.provider, one.instance_id, one.phase.value, record)
        db.execute("INSERT INTO machines VALUES (?,?,?,?,?,?,?)", columns)
        db.execute("INSERT INTO joins VALUES (?, 'n-1', ?)", (one.name, NOW.isoformat()))
    db.execute(f"PRAGMA user_version = {BEFORE_CLOSING}")
    db.commit()
    db.close()
    journal = Journal(tmp_path / "j.db")
    tickets = JoinTokens(journal)
    assert [tickets.closed(one.name) for one in machines] == [False, True, True, True]
    assert tickets.device(joining.name) == "n-1"
    journal.close()
