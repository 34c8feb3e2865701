"""A journal of an earlier form opens, and means what it meant. The dump was written by the last meshd of form 9."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from meshd.errors import StoreError
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.plan.unclear_launch import was_unclear
from meshd.store.journal import Journal
from meshd.store.migrations import MIGRATIONS
from tests.unit.worlds import NOW, ago

FORM_9 = Path(__file__).with_name("journal_form_9.sql")

TIMES: dict[int, dict[str, datetime]] = {
    1: {"create_repeated_at": ago(50), "create_unclear_at": ago(40), "head_reached_at": ago(30)},
    2: {"cloud_asked_at": ago(20), "cloud_confirmed_at": ago(20)},
    3: {
        "slurmd_start_ordered_at": ago(400), "slurmd_restarted_at": ago(100), "unfit_since": ago(200),
        "agent_asked_at": ago(10), "device_gone_since": ago(90), "rebooting_since": ago(80),
        "key_expiry_asked_at": ago(250),
    },
    4: {"slurmd_start_ordered_at": ago(1000), "drained_at": ago(70)},
    5: {"drained_at": ago(71)},
    6: {"slurmd_start_ordered_at": ago(1000)},
    7: {"terminate_called_at": ago(15)},
    8: {"unreadable_since": ago(7200)},
    9: {"create_unclear_at": ago(880)},
}  # fmt: skip
"""By slot, what the machines of the dump had under `marks`."""

ALL_TIMES = frozenset(name for times in TIMES.values() for name in times)


def opened(path: Path, *changes: str) -> Journal:
    """The journal of the dump, after these SQL statements."""
    db = sqlite3.connect(path)
    db.executescript(FORM_9.read_text())
    for change in changes:
        assert db.execute(change).rowcount == 1
    db.execute("PRAGMA user_version = 9")
    db.commit()
    db.close()
    return Journal(path)


def of_slot(journal: Journal, index: int) -> Machine:
    (found,) = journal.machines_of_slot(f"h100-{index}")
    return found


@pytest.mark.parametrize("index", sorted(TIMES))
def test_each_time_is_where_it_belongs(tmp_path: Path, index: int) -> None:
    journal = opened(tmp_path / "j.db")
    found = of_slot(journal, index)
    times = {name: at for name in ALL_TIMES if (at := getattr(found, name)) is not None}
    assert times == TIMES[index]
    journal.close()


def test_verdicts_removals_and_what_follows_from_them(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j.db")
    assert of_slot(journal, 3).unfit_reason is UnfitReason.NOT_RESPONDING
    assert of_slot(journal, 3).rebooting
    assert [of_slot(journal, index).removal for index in range(3, 8)] == [
        None, Removal.SCALE_DOWN, Removal.GANG_MOVED, Removal.BY_USER, Removal.FORCED
    ]  # fmt: skip
    assert [m.slot for m in journal.machines() if m.held] == ["h100-8", "h100-10"]
    assert of_slot(journal, 9).phase is Phase.GONE and was_unclear(of_slot(journal, 9))
    assert [(table, key) for table, key in kept_aside(tmp_path / "j.db")] == [("machines", "lab-h100-10-abcde10")]
    journal.close()


def test_targets_and_cooldowns_stay(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j.db")
    assert (journal.targets()["h100"].gpus, journal.targets()["h100"].at) == (4, ago(600))
    assert {key: (one.cause, one.strikes) for key, one in journal.cooldowns(NOW).items()} == {
        CooldownKey("offer:aws/r1a/g.1"): (CooldownCause.REFUSED, 2),
        CooldownKey("provider:aws"): (CooldownCause.PAUSE, 1),
        CooldownKey("pool:h100"): (CooldownCause.BOOTS, 3),
        CooldownKey("pool:h100@aws"): (CooldownCause.BOOTS, 1),
        CooldownKey("pool:h100@aws/r1"): (CooldownCause.ENDED, 1),
        CooldownKey("replace:h100"): (CooldownCause.UNFIT, 2),
    }
    journal.close()


@pytest.mark.parametrize(
    "marks", ["null", "[]", '"x"', '{"drained": "soon"}', '{"unfit:nonsense": "2026-03-01T12:00Z"}']
)
def test_a_machine_whose_marks_cannot_be_read_is_held(tmp_path: Path, marks: str) -> None:
    change = f"UPDATE machines SET record = json_set(record, '$.marks', json('{marks}')) WHERE slot = 'h100-6'"
    kept = "UPDATE machines SET record = json_set(record, '$.removal', '') WHERE slot = 'h100-6'"
    journal = opened(tmp_path / "j.db", change, kept)
    found = of_slot(journal, 6)
    assert found.held and found.phase is Phase.READY
    journal.close()


def test_no_record_of_the_dump_keeps_its_marks(tmp_path: Path) -> None:
    opened(tmp_path / "j.db").close()
    db = sqlite3.connect(tmp_path / "j.db")
    records: list[dict[str, Any]] = [json.loads(record) for (record,) in db.execute("SELECT record FROM machines")]
    assert len(records) == 10 and not [record for record in records if "marks" in record]
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    db.close()


def kept_aside(path: Path) -> list[tuple[str, str]]:
    db = sqlite3.connect(path)
    rows = db.execute("SELECT of_table, key FROM unreadable ORDER BY id").fetchall()
    db.close()
    return rows


def test_the_former_form_is_kept_once(tmp_path: Path) -> None:
    """The way back to the version before the upgrade; only the newest copy stays, and nobody else may read it."""
    path = tmp_path / "j.db"
    (tmp_path / "j.db.form-8").write_text("of an earlier upgrade")
    opened(path).close()
    copy = tmp_path / "j.db.form-9"
    assert sorted(p.name for p in tmp_path.glob("j.db.form-*")) == [copy.name]
    assert copy.stat().st_mode & 0o777 == 0o600
    db = sqlite3.connect(copy)
    assert db.execute("PRAGMA user_version").fetchone() == (9,)
    assert db.execute("SELECT count(*) FROM machines").fetchone() == (10,)
    db.close()
    before = copy.stat()
    Journal(path).close()  # nothing changes any more
    assert copy.stat() == before


def test_a_new_journal_has_no_former_form(tmp_path: Path) -> None:
    Journal(tmp_path / "j.db").close()
    assert not list(tmp_path.glob("*.form-*"))


def test_without_a_copy_the_journal_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    (tmp_path / "j.db.form-9.new").mkdir()  # as if it could not be written
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (9,)
    db.close()


def test_a_migration_is_whole_or_none(tmp_path: Path) -> None:
    """What stands in the way of the last steps undoes the first ones too: the older meshd still opens the file."""
    path = tmp_path / "j.db"
    db = sqlite3.connect(path)
    db.executescript(FORM_9.read_text())
    db.execute("CREATE TABLE lives (x)")
    db.execute("PRAGMA user_version = 9")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="lives"):
        Journal(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (9,)
    assert not db.execute("SELECT name FROM sqlite_master WHERE name = 'promises'").fetchall()
    db.close()
