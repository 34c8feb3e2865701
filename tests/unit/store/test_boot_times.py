"""How long machines took, from the journal."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from meshd.model.machine import Phase
from meshd.plan.waiting import BootTime
from meshd.store.boot_times import boot_times
from meshd.store.journal import Journal
from tests.unit.worlds import NOW, machine


def test_of_the_machines_that_became_ready_the_newest_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    for index, took_s in ((1, 90.0), (2, 75.5), (3, None), (4, 7200.0), (5, -1.0)):
        ready = None if took_s is None else NOW + timedelta(seconds=took_s)
        one = machine(Phase.GONE if index % 2 else Phase.READY, index=index, launch_called_at=NOW, ready_at=ready)
        journal.put(one, "phase", "as it is", NOW)
    with journal.writing() as db:
        db.execute("UPDATE machines SET record = 'no JSON' WHERE slot = 'h100-3'")
    assert boot_times(journal) == (BootTime("aws", "g.1", 75.5), BootTime("aws", "g.1", 90.0))
    journal.close()
