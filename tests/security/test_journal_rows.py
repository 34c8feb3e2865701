"""A bad row of the journal stops nothing, hides nothing and loses nothing."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.daemon.machines import problems
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.freeze import Freeze
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh, Snapshot
from meshd.munge.rotation import MungeStage
from meshd.munge.rotation import begin as begin_munge
from meshd.plan.notices import Told
from meshd.plan.planner import plan
from meshd.plan.samples import Figure, Mean, begin
from meshd.provider_api import Instance, InstanceId, InstanceState
from meshd.store.auth_rotations import AuthRotations
from meshd.store.freezes import Freezes
from meshd.store.hosts import Hosts
from meshd.store.journal import Journal
from meshd.store.machine_keys import OpenKeys
from meshd.store.migrations import MIGRATIONS
from meshd.store.munge_rotations import MungeRotations
from meshd.store.notices import ToldReceivers
from meshd.store.samples import Samples
from meshd.tailnet import machine_keys
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin, NodeStage, RotationNode
from tests.unit.worlds import AWS, FACTS, NOW, host, machine, slurm, snapshot

FIELDS = {
    "facts": {"shape": None},
    "offer": None,
    "created_at": "yesterday",
    "phase": "flying",
    "slurmd_started": "perhaps",
    "drained_at": "x",
    "launch_attempts": None,
    "unheard_of": None,
}


def damaged(path: Path, table: str, record: str, where: str = "1") -> None:
    """Write a record over those in a closed journal."""
    with sqlite3.connect(path) as db:
        changed = db.execute(f"UPDATE {table} SET record = ? WHERE {where}", (record,)).rowcount
    db.close()
    assert changed == 1


def kept_aside(path: Path) -> list[tuple[str, str, str]]:
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT of_table, key, record FROM unreadable ORDER BY id").fetchall()
    db.close()
    return rows


def ready(path: Path, **changes: Any) -> Machine:
    """A READY machine in a journal that is closed again."""
    one = machine(Phase.READY, facts=FACTS, slurmd_started=True, line_published=True, **changes)
    journal = Journal(path)
    journal.put(one, "phase", "is ready", NOW)
    journal.close()
    return one


def record_of(path: Path) -> dict[str, Any]:
    with sqlite3.connect(path) as db:
        record = json.loads(db.execute("SELECT record FROM machines").fetchone()[0])
    db.close()
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize(
    "record", ["", "{", "null", "[]", "{}", '"x"', "[" * 5000, '{"name": "\\ud800"}', '{"offer": NaN}']
)
def test_a_machine_whose_record_is_no_record_is_held_with_what_the_columns_say(tmp_path: Path, record: str) -> None:
    path = tmp_path / "j.db"
    one = ready(path)
    damaged(path, "machines", record)
    journal = Journal(path)
    (found,) = journal.machines()
    assert (found.name, found.pool, found.slot, found.provider) == (one.name, one.pool, one.slot, one.provider)
    assert (found.instance_id, found.phase) == (one.instance_id, Phase.READY)
    assert found.held and found.may_run_jobs
    assert kept_aside(path) == [("machines", one.name, record)]
    assert [event.kind for event in journal.events()][-1] == "journal"
    journal.close()
    again = Journal(path)
    assert again.machines() == [found], "what was salvaged is an ordinary row"
    assert len(kept_aside(path)) == 1
    again.close()


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_cannot_be_read_costs_no_other_field(tmp_path: Path, field: str) -> None:
    path = tmp_path / "j.db"
    one = ready(path)
    damaged(path, "machines", json.dumps({**record_of(path), field: FIELDS[field]}))
    journal = Journal(path)
    (found,) = journal.machines()
    if field == "unheard_of":
        assert found == one
    else:
        assert found.phase is Phase.READY and found.instance_id == one.instance_id and found.may_run_jobs
        assert found.held == (field not in {"facts", "phase"})
    if field != "offer":
        assert found.offer == one.offer
    journal.close()


def test_only_the_facts_are_lost_so_the_agent_joins_again(tmp_path: Path) -> None:
    """Such a record came from a clock skew that was no number: JSON has null for it."""
    path = tmp_path / "j.db"
    ready(path)
    record = record_of(path)
    record["facts"]["clock_skew_s"] = None
    damaged(path, "machines", json.dumps(record))
    journal = Journal(path)
    (found,) = journal.machines()
    assert found.facts is None and not found.held
    journal.close()


NODE = RotationNode("h100-1", NodeStage.WAITING, NOW)
POOL = Pool("h100", "h100", 1, 8, ("aws",))


def seen(one: Machine, state: InstanceState = InstanceState.RUNNING) -> Snapshot:
    """The cloud lists the machine, and one that nobody knows."""
    mine = Instance(
        AWS, InstanceId(one.instance_id), one.name, state, "r1", "g.1", launched_at=NOW - timedelta(hours=9)
    )
    return replace(snapshot(slurm=Fresh(slurm(), NOW)), instances={AWS: Fresh((mine,), NOW)})


@pytest.mark.parametrize("target", [0, 1, 4])
@pytest.mark.parametrize("record", ["", '{"phase": "ready", "offer": null}'])
def test_an_unreadable_machine_is_neither_ended_nor_replaced_nor_forgotten(
    tmp_path: Path, record: str, target: int
) -> None:
    path = tmp_path / "j.db"
    one = ready(path)
    damaged(path, "machines", record)
    journal = Journal(path)
    desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", target)}, Policy())
    for world in (seen(one), replace(seen(one), instances={AWS: Fresh((), NOW)}), snapshot()):
        steps = plan(desired, journal.machines(), world, NOW).steps
        assert not [step for step in steps if step.subject == one.name]
        assert not [step for step in steps if getattr(step, "slot", "") == one.slot], "its slot is taken"
    shown = list(problems.journal(journal.unreadable.lately(NOW), journal.machines(), journal.targets()))
    assert [(p.severity, p.machine) for p in shown] == [("error", one.name)]
    assert f"meshctl remove {one.name}" in shown[0].cure
    removed = replace(journal.machines()[0], removal=Removal.BY_USER)
    steps = plan(desired, [removed], seen(one), NOW).steps
    assert [step.subject for step in steps if step.subject == one.name] == [one.name], "the cure works"
    journal.close()


def test_one_whose_end_has_begun_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    one = machine(Phase.TERMINATING, left_slurm=True)
    journal = Journal(path)
    journal.put(one, "phase", "ends", NOW)
    journal.close()
    damaged(path, "machines", "{")
    journal = Journal(path)
    (found,) = journal.machines()
    assert found.phase is Phase.TERMINATING and found.unreadable_since is not None and not found.held
    journal.close()


def test_a_bad_row_of_the_history_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    gone = machine(Phase.GONE)
    journal.put(gone, "phase", "gone", NOW)
    journal.close()
    damaged(path, "machines", "{")
    journal = Journal(path)
    assert journal.machines() == []
    assert [m.name for m in journal.history()] == [gone.name]
    assert [m.name for m in journal.machines_of_slot(gone.slot)] == [gone.name]
    found = journal.machine(gone.name)
    assert found is not None and found.phase is Phase.GONE
    assert journal.knows_instance("aws", gone.instance_id)
    journal.close()


def test_targets_and_blocks(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for pool in ("h100", "a100"):
        journal.set_target(Target(pool, 2), "two", NOW)
    for key in (CooldownKey("pool:h100"), CooldownKey("pool:a100")):
        journal.set_cooldown(Cooldown(key, NOW + timedelta(hours=1), "why"), NOW)
    journal.close()
    damaged(path, "targets", '{"pool": "h100", "gpus": null}', "pool = 'h100'")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE blocks SET until = 'soon' WHERE key = 'pool:h100'")
    db.close()
    journal = Journal(path)
    assert set(journal.targets()) == {"a100"}
    assert set(journal.cooldowns(NOW)) == {CooldownKey("pool:a100")}
    assert [(table, key) for table, key, _ in kept_aside(path)] == [
        ("targets", "h100"),
        ("blocks", CooldownKey("pool:h100")),
    ]
    shown = list(problems.journal(journal.unreadable.lately(NOW), [], journal.targets()))
    assert {p.severity for p in shown} == {"warning"} and len(shown) == 2
    journal.set_target(Target("h100", 3), "three", NOW)
    shown = list(problems.journal(journal.unreadable.lately(NOW), [], journal.targets()))
    assert len(shown) == 1, "the target was set again"
    journal.close()


def test_a_munge_rotation_that_cannot_be_read_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    store = MungeRotations(journal)
    first = replace(begin_munge("aa", "o" * 16, NOW, "root"), stage=MungeStage.DONE, new="n" * 16, ended_at=NOW)
    store.put(first, "done", NOW)
    store.put(replace(first, id="bb", spread_ms=float("inf")), "done", NOW)
    journal.close()
    journal = Journal(path)
    assert MungeRotations(journal).last() == first
    assert [(table, key) for table, key, _ in kept_aside(path)] == [("munge_rotations", "bb")]
    assert MungeRotations(journal).last() == first
    journal.close()


def test_an_auth_rotation_that_cannot_be_read_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    store = AuthRotations(journal)
    first = AuthKeyRotation(
        id="aa",
        stage=AuthKeyStage.DONE,
        stage_since=NOW,
        started_at=NOW,
        reason="said",
        source=KeyOrigin.FILE,
        by="root",
        old=None,
    )
    store.put(replace(first, nodes={"m1": NODE, "m2": NODE}), NOW)
    store.put(replace(first, id="bb", nodes={"m1": NODE}), NOW)
    journal.close()
    damaged(path, "auth_rotations", "{", "id = 'bb'")
    damaged(path, "auth_rotation_nodes", '{"gap_s": {}}', "rotation = 'aa' AND machine = 'm2'")
    journal = Journal(path)
    last = AuthRotations(journal).last()
    assert last is not None and last.id == "aa" and set(last.nodes) == {"m1"}
    assert {(table, key) for table, key, _ in kept_aside(path)} == {
        ("auth_rotation_nodes", "m1"), ("auth_rotations", "bb"), ("auth_rotation_nodes", "m2"),
    }  # fmt: skip
    journal.close()


def test_machine_keys(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for name in ("m1", "m2"):
        OpenKeys(journal).put(machine_keys.ask(name, machine_keys.LAUNCH, NOW, 3600.0))
    journal.close()
    damaged(path, "machine_keys", "[]", "machine = 'm1'")
    journal = Journal(path)
    assert [key.machine for key in OpenKeys(journal).all()] == ["m2"]
    assert [key for _, key, _ in kept_aside(path)] == ["m1 launch"]
    journal.close()


def test_hosts(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for index in (1, 2):
        Hosts(journal).put(host(index), "invited", NOW)
    journal.close()
    damaged(path, "hosts", '{"name": "pc-1", "slot": 7}', "name = 'pc-1'")
    journal = Journal(path)
    assert Hosts(journal).all() == (host(2),)
    assert [(table, key) for table, key, _ in kept_aside(path)] == [("hosts", "pc-1")]
    journal.close()


def test_a_freeze_that_cannot_be_read_holds(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    Freezes(journal, NOW).freeze(Freeze(NOW, "ann", "why"))
    journal.close()
    damaged(path, "freezes", '{"at": "yesterday"}')
    for _ in range(2):
        journal = Journal(path)
        held = Freezes(journal, NOW).current
        assert held is not None and held.by == "meshd"
        journal.close()
    assert [(table, key) for table, key, _ in kept_aside(path)] == [("freezes", "meshd")]


def test_samples(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for minute in range(2):
        Samples(journal).add(NOW + timedelta(minutes=minute), {Figure.JOBS_RUNNING: Mean(minute + 1.0)})
    journal.close()
    damaged(path, "samples", '{"jobs_running": [1, 0]}', f"step_s = 60 AND at = {int(NOW.timestamp())}")
    damaged(path, "samples", "{", "step_s = 900")
    journal = Journal(path)
    samples = Samples(journal)
    found = samples.read(60, NOW, NOW + timedelta(hours=1))
    assert [sample.means for sample in found] == [{Figure.JOBS_RUNNING: Mean(2.0)}]
    later = NOW + timedelta(minutes=2)
    samples.add(later, {Figure.JOBS_RUNNING: Mean(6.0)})
    assert samples.last(later) == later
    assert [s.means for s in samples.read(900, begin(NOW, 900), later)] == [{Figure.JOBS_RUNNING: Mean(6.0)}]
    (day,) = samples.read(86400, begin(NOW, 86400), later)
    assert day.means == {Figure.JOBS_RUNNING: Mean(9.0, 3)}
    assert {table for table, _, _ in kept_aside(path)} == {"samples"}
    journal.close()


def test_what_a_receiver_was_told(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for name in ("chat", "ops"):
        ToldReceivers(journal).put(name, Told({}, (NOW,)))
    journal.close()
    damaged(path, "told_receivers", '{"entries": {"k": null}}', "name = 'chat'")
    journal = Journal(path)
    assert ToldReceivers(journal).all() == {"ops": Told({}, (NOW,))}, "the other one is told anew"
    assert [(table, key) for table, key, _ in kept_aside(path)] == [("told_receivers", "chat")]
    journal.close()


def test_events(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    for number in range(4):
        journal.event(NOW, "test", f"{number}")
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET fields = '{' WHERE id = 1")
        db.execute("UPDATE events SET at = 'soon' WHERE id = 2")
        db.execute("UPDATE events SET text = CAST(x'ff41' AS TEXT) WHERE id = 3")
    db.close()
    journal = Journal(path)
    found = journal.events(limit=10)
    assert [event.text for event in found if event.kind == "test"] == ["0", "1", "\ufffdA", "3"]
    assert all(event.at.tzinfo is not None for event in found)
    assert journal.events_of_pool("h100", 10) == []
    journal.close()


def test_an_old_journal_with_a_bad_row_is_brought_to_the_newest_form(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    one = ready(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE machines SET record = '{'")
        newer = ("unreadable", "node_tokens", "token_renewals", "promises", "lives", "job_uses", "ledger_pruned",
                 "job_costs", "job_costs_until", "hosts", "bakes", "freezes", "samples",
                 "told_receivers", "restores")  # fmt: skip
        for table in newer:
            db.execute(f"DROP TABLE {table}")
        db.execute("DROP INDEX events_by_origin")
        db.execute("ALTER TABLE events DROP COLUMN origin")
        db.execute("ALTER TABLE joins DROP COLUMN closed_at")
        db.execute("PRAGMA user_version = 5")
    db.close()
    journal = Journal(path)
    assert [m.name for m in journal.machines()] == [one.name]
    assert len(MIGRATIONS) > 5
    journal.close()
