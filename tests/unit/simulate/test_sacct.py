"""Dumps of Slurm's accounting, those of other people's making too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.config import PoolSettings, Settings
from meshd.errors import ConfigError
from meshd.simulate import read as files
from meshd.simulate import sacct
from meshd.simulate.sacct import BadDump, Dump, read

HEADER = "JobID|User|Partition|Submit|Start|State|ElapsedRaw|NNodes|ReqTRES"
POOLS = {"gpu": "a100", "a100": "a100", "cpu": "cpu"}


def dump(*rows: str, header: str = HEADER) -> Dump:
    return read([f"{header}\n", *(f"{row}\n" for row in rows)], POOLS)


def row(job: str = "7", partition: str = "gpu", submit: str = "2026-11-01T10:00:00", elapsed: str = "60",
        nodes: str = "2", tres: str = "cpu=16,mem=64G,node=2,gres/gpu=8", state: str = "COMPLETED") -> str:  # fmt: skip
    return f"{job}|ana|{partition}|{submit}|Unknown|{state}|{elapsed}|{nodes}|{tres}"


def test_jobs_begin_at_the_first_submit_in_their_order() -> None:
    found = dump(row("8", submit="2026-11-01T11:00:00"), row("7"))
    assert [(job.at_s, job.nodes, job.cpus, job.gpus, job.run_s, job.pool, job.user) for job in found.jobs] == [
        (0, 2, 8, 4, 60, "a100", "ana"), (3600, 2, 8, 4, 60, "a100", "ana"),
    ]  # fmt: skip
    assert not found.left_out


def test_columns_may_be_in_any_order_and_end_with_a_bar() -> None:
    found = dump("1|2026-11-01T10:00:00|30|9|cpu|", header="NNodes|Submit|ElapsedRaw|JobID|Partition")
    assert [(job.nodes, job.run_s, job.pool, job.cpus, job.gpus) for job in found.jobs] == [(1, 30, "cpu", None, None)]


def test_gpus_of_a_model_are_counted_once() -> None:
    (job,) = dump(row(nodes="1", tres="cpu=4,gres/gpu:h100=2,gres/gpu=2")).jobs
    assert (job.cpus, job.gpus) == (4, 2)
    (job,) = dump(row(nodes="3", tres="gres/gpu:h100=4")).jobs
    assert (job.cpus, job.gpus) == (None, 2), "of each node, rounded up"


def test_tasks_of_arrays_are_jobs_once_they_ran() -> None:
    found = dump(row("5_1"), row("5_2"), row("5_[3-9%2]", state="PENDING", elapsed="0"))
    assert len(found.jobs) == 2
    assert sum(found.left_out.values()) == 1


def test_parts_of_heterogeneous_jobs_are_jobs_of_their_own() -> None:
    found = dump(row("12+0"), row("12+1", nodes="1"))
    assert [job.nodes for job in found.jobs] == [2, 1]
    assert sum(found.left_out.values()) == 2


def test_what_never_ran_steps_and_other_partitions_are_left_out_and_counted() -> None:
    found = dump(
        row("1", elapsed="0", state="CANCELLED by 1000"), row("2", elapsed="Unknown"), row("3.batch"), row("3.0"),
        row("4", partition="debug"), row("5", partition="debug,gpu"),
    )  # fmt: skip
    assert [job.pool for job in found.jobs] == ["a100"]
    assert sorted(found.left_out.values()) == [1, 2, 2]


def test_a_cancelled_job_is_simulated_for_the_time_that_it_ran() -> None:
    assert [job.run_s for job in dump(row(state="CANCELLED by 1000", elapsed="77")).jobs] == [77]


def test_a_dump_without_jobs_is_none() -> None:
    assert dump() == Dump()


@pytest.mark.parametrize(
    "bad",
    [
        row("x"), row("7;rm"), row(submit="Unknown"), row(submit="1761998400"), row(submit="2026-11-01T10:00:00Z"),
        row(submit="2026-11-01T10:00:00+01:00"), row(nodes="2K"), row(submit="2026-13-01T10:00:00"), row(elapsed="-1"),
        row(elapsed="1-00:00:00"), row(elapsed="9" * 30), row(nodes="0"), row(nodes="99999"), row(nodes=""),
        "7|ana|gpu", row() + "|more|", "\x00", row(elapsed="9999999999"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(bad: str) -> None:
    with pytest.raises(BadDump) as caught:
        dump(row(), bad, row())
    assert [fault.line for fault in caught.value.faults] == [3]


def test_a_dump_of_nothing_says_how_to_make_one() -> None:
    for lines in ([], [""], ["\n"]):
        with pytest.raises(BadDump, match="sacct -a -X -P"):
            read(lines, POOLS)


def test_tasks_of_arrays_and_parts_of_heterogeneous_jobs_are_jobs() -> None:
    found = dump(row("3_1"), row("3_[2-10%2]"), row("4+0"), row("4+1"))
    assert len(found.jobs) == 3
    assert sorted(found.left_out.values()) == [1, 2]


def test_a_header_without_a_column_is_refused() -> None:
    with pytest.raises(BadDump, match="ElapsedRaw"):
        dump(header="JobID|Partition|Submit|NNodes")
    with pytest.raises(BadDump):
        read([], POOLS)


def test_a_dump_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadDump, match="92 days"):
        dump(row(), row(submit="2027-11-01T10:00:00"))
    with pytest.raises(BadDump) as caught:
        dump(*[row("x")] * 50)
    assert len(caught.value.faults) == sacct.FAULTS_MAX
    with pytest.raises(BadDump, match="longer"):
        dump(row(tres="a" * sacct.LINE_MAX))
    monkeypatch.setattr(sacct, "JOBS_MAX", 3)
    with pytest.raises(BadDump, match="3 jobs"):
        dump(*[row()] * 5)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=200), max_size=5), st.booleans())
def test_whatever_a_dump_says_it_is_read_or_refused_with_its_lines(rows: list[str], headed: bool) -> None:
    try:
        found = read([HEADER, *rows] if headed else rows, POOLS)
    except BadDump as error:
        assert error.faults
        assert all(fault.line >= 1 for fault in error.faults)
    else:
        assert all(job.pool in POOLS.values() and job.nodes > 0 for job in found.jobs)


@given(st.lists(st.sampled_from(["1", "", "Unknown", "gpu", "2026-11-01T10:00:00", "-1", "é|", "9" * 40]), max_size=11))
def test_likewise_for_values_out_of_place(values: list[str]) -> None:
    try:
        read([HEADER, "|".join(values)], POOLS)
    except BadDump as error:
        assert [fault.line for fault in error.faults] == [2]


def test_a_partition_is_its_pool_and_a_fault_has_file_and_line(tmp_path: Path) -> None:
    settings = Settings(pools={"a100": PoolSettings(gpu="a100", partition="gpu")})
    path = tmp_path / "dump"
    path.write_bytes(f"{HEADER}\n{row()}\n".encode())
    assert [job.pool for job in files.dump(path, settings).jobs] == ["a100"]
    path.write_bytes(b"\xff\xfe" * 100)
    with pytest.raises(ConfigError) as caught:
        files.dump(path, settings)
    assert (caught.value.source, [fault.line for fault in caught.value.faults]) == (str(path), [1])
