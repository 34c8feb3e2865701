"""Which jobs had which nodes, as squeue and sacct print it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshd.errors import CommandError, SlurmError
from meshd.model.ledger import JobUse
from meshd.runtime.run import Result
from meshd.slurm.job_records import SACCT_FIELDS, SQUEUE_FIELDS, JobRecordReader, parse_uses
from meshd.slurm.listing import SEPARATOR

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%dT%H:%M:%S}"


def line(state: str, nodes: str = "h100-[1-2]", **changes: str) -> str:
    fields = {
        "job": "12_3", "user": "ann", "account": "lab", "name": "train me", "state": state, "start": local(AT),
        "end": local(AT + timedelta(hours=1)), "nodes": nodes, "count": "2", "cpus": "16",
        "tres": "cpu=16,mem=8G,node=2,billing=16,gres/gpu=4,gres/gpu:h100=4",
    }  # fmt: skip
    return SEPARATOR.join({**fields, **changes}.values())


def test_each_node_of_a_job_is_a_use_with_its_part() -> None:
    found = list(parse_uses(line("COMPLETED") + "\n" + line("RUNNING", job="13", nodes="h100-4", tres="cpu=2")))
    end = AT + timedelta(hours=1)
    assert found == [
        JobUse("12_3", "h100-1", "ann", "lab", "train me", AT, end, 2, 8),
        JobUse("12_3", "h100-2", "ann", "lab", "train me", AT, end, 2, 8),
        JobUse("13", "h100-4", "ann", "lab", "train me", AT, None, 0, 16),
    ]


@pytest.mark.parametrize(
    "text",
    [
        line("PENDING", nodes=""),
        line("CONFIGURING"),
        line("CANCELLED by 1000", nodes="None assigned"),
        line("RUNNING", start="Unknown"),
        line("CANCELLED", end="Unknown"),
        "slurm_load_jobs error: Unable to contact slurm controller",
        line("RUNNING", nodes="h100-["),
        "",
    ],
)
def test_what_had_no_node_is_no_use(text: str) -> None:
    assert list(parse_uses(text)) == []


def test_a_cancelled_job_that_ran_is_one() -> None:
    assert len(list(parse_uses(line("CANCELLED by 1000", nodes="h100-1")))) == 1


class Programs:
    def __init__(self, **failing: bool) -> None:
        self.failing = failing
        self.argv: list[tuple[str, ...]] = []
        self.name = "train"

    async def __call__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **_more: Any) -> Result:
        self.argv.append(tuple(argv))
        if self.failing.get(argv[0]):
            raise CommandError(list(argv), 1, "no")
        delimiters = [word.partition("=")[2] for word in argv if word.startswith("--delimiter=")]
        mark = delimiters[0] if delimiters else (env or {})["SQUEUE_FORMAT2"].partition(":")[2].partition(",")[0]
        fields = line("RUNNING", nodes="h100-1", name=self.name).split(SEPARATOR)
        return Result(tuple(argv), 0, "".join(f"{field}{mark}" for field in fields) + "\n", "")


async def test_records_are_read_where_there_are_some() -> None:
    programs = Programs()
    found = await JobRecordReader(programs, 5.0).read(AT, records=True)
    assert (len(found.uses), found.whole) == (1, True)
    assert programs.argv[0][0] == "sacct"
    assert {"-a", "-X", "-D", local(AT - timedelta(hours=1))} <= set(programs.argv[0])


@pytest.mark.parametrize("records", [True, False])
async def test_else_slurmctlds_memory_is(records: bool) -> None:
    programs = Programs(sacct=True)
    found = await JobRecordReader(programs, 5.0).read(AT, records=records)
    assert (len(found.uses), found.whole) == (1, False)
    with pytest.raises(SlurmError):
        await JobRecordReader(Programs(sacct=True, squeue=True), 5.0).read(AT, records=records)


@pytest.mark.parametrize("records", [True, False])
async def test_the_name_of_a_job_forges_no_other_job(records: bool) -> None:
    programs = Programs()
    programs.name = "x\n" + line("RUNNING", job="99", user="bob", nodes="h100-2").replace(SEPARATOR, "|")
    found = await JobRecordReader(programs, 5.0).read(AT, records=records)
    assert [(use.job, use.user, use.slot) for use in found.uses] == [("12_3", "ann", "h100-1")]


def test_both_have_the_same_fields() -> None:
    assert len(SQUEUE_FIELDS) == len(SACCT_FIELDS)
