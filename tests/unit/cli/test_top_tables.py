"""What the tables and lines of `meshctl top` hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from meshd.api.schema import (
    BudgetRow,
    CostView,
    FreezeView,
    GpuLoadRow,
    HeadNodeRow,
    JobRow,
    JobsView,
    NodeRow,
    NodesView,
    PoolView,
    ProblemView,
    QueueView,
    SourceView,
    SpendView,
    StatusView,
)
from meshd.cli.top.board import Board
from meshd.cli.top.summary import busy, problems, summary
from meshd.cli.top.tables import JOB_ORDERS, JOBS, NODE_ORDERS, NODES, POOLS, Line, jobs, nodes, pools, select
from tests.unit.cli.helpers import NOW


def node(index: int, *loads: int, **more: object) -> NodeRow:
    row = NodeRow(
        machine=f"lab-h100-{index}-k7q2mz", slot=f"h100-{index}", pool="h100", provider="aws", phase="ready",
        since=NOW - timedelta(minutes=index), usd_per_hour=float(index),
        gpu_load=[GpuLoadRow(index=i, utilization_percent=load, memory_used_mib=2048) for i, load in enumerate(loads)],
    )  # fmt: skip
    return row.model_copy(update=more)


STATUS = StatusView(
    cluster="lab", version="0.1.0", at=NOW, uptime_s=60,
    pools=[PoolView(name="h100", partition="gpu", target_gpus=16, wanted_gpus=16, ready_gpus=8, unfit_gpus=2,
                    usd_per_hour=3, machines={"ready": 2, "booting": 1}, queue=QueueView(running=4, pending=1))],
    spend=SpendView(usd_per_hour=3, usd_so_far=7),
)  # fmt: skip
BOARD = Board(
    status=STATUS,
    nodes=NodesView(at=NOW, nodes=[
        node(1, 100, 50, jobs=["10", "9"]), node(2, 0, unfit="x", unfit_text="\x1b[31mno GPU"),
        node(3, phase="booting", for_jobs=["11"], reason="aws has it"),
    ]),
    jobs=JobsView(at=NOW, read_at=NOW, jobs=[
        JobRow(job="9", user="alice", pool="h100", partition="gpu", state="RUNNING", nodes=["h100-1", "h100-2"],
               node_count=2, gpus=4, run_s=3600),
        JobRow(job="11", user="bob", pool="h100", partition="gpu", state="CONFIGURING", node_count=3, reason="boots"),
    ]),
)  # fmt: skip


def texts(lines: list[Line]) -> list[dict[str, str]]:
    columns = {len(POOLS): POOLS, len(NODES): NODES, len(JOBS): JOBS}
    return [
        {column.name: cell.plain for column, cell in zip(columns[len(line.cells)], line.cells, strict=True)}
        for line in lines
    ]


def test_pools_have_the_load_of_their_nodes() -> None:
    head = HeadNodeRow(name="tower", gpus=1, up=True, slurm_state="IDLE")
    first, second = texts(pools(replace(BOARD, status=STATUS.model_copy(update={"head": head}))))
    assert (first["POOL"], first["WANTED"], first["READY"], first["GPU"]) == ("h100", "16", "8 (2 unfit)", "50%")
    assert first["MACHINES"] == "1 booting, 2 ready"
    assert (second["POOL"], second["READY"], second["USD/H"]) == ("tower", "1", "-")
    assert pools(Board()) == [] == nodes(Board()) == jobs(Board())


def test_a_node_says_why_and_for_whom() -> None:
    one, two, three = texts(nodes(BOARD))
    assert (one["NODE"], one["GPU"], one["MEMORY"], one["JOBS"], one["FOR"]) == (
        "h100-1", "75%", "4 GiB", "10,9", "1m00s",
    )  # fmt: skip
    assert "no GPU" in two["WHY"] and "\x1b" not in two["WHY"]
    assert (three["GPU"], three["MEMORY"], three["JOBS"], three["WHY"]) == ("-", "-", "for 11", "aws has it")


def test_a_job_has_the_load_of_its_nodes() -> None:
    one, two = texts(jobs(BOARD))
    assert (one["NODES"], one["GPU"], one["TIME"]) == ("h100-[1-2]", "50%", "1h00m")
    assert (two["NODES"], two["GPU"], two["TIME"], two["WHY"]) == ("(3)", "-", "-", "boots")


def test_lines_are_sorted_and_filtered() -> None:
    lines = nodes(BOARD)
    for order in NODE_ORDERS:
        assert {line.key for line in select(lines, order=order)} == {line.key for line in lines}
    assert [line.key for line in select(lines, order="gpu")] == [line.key for line in lines], "unknown comes last"
    assert [line.key for line in select(lines, order="usd")] == [line.key for line in reversed(lines)]
    assert [line.key for line in select(lines, words="AWS boot")] == ["lab-h100-3-k7q2mz"]
    assert select(lines, words="nothing") == []
    for order in JOB_ORDERS:
        assert len(select(jobs(BOARD), order=order)) == 2


def test_the_summary_says_what_is_silent() -> None:
    assert summary(BOARD, NOW).plain.count("\n") == 1
    late = STATUS.model_copy(update={"tick_age_s": 90.0, "sources": [SourceView(name="provider:aws", ok=False)]})
    assert summary(replace(BOARD, status=late), NOW).plain.splitlines()[2] == (
        "the last tick began 1m30s ago, aws does not answer"
    )
    silent = replace(BOARD, error="meshd is not running", error_since=NOW - timedelta(seconds=7))
    assert summary(silent, NOW).plain.splitlines()[2] == "meshd does not answer for 7s: meshd is not running"
    assert "not running" in summary(Board(error="meshd is not running"), NOW).plain
    assert summary(Board(), NOW).plain
    freeze = FreezeView(since=NOW, by="root", reason="audit")
    assert summary(replace(BOARD, status=STATUS.model_copy(update={"freeze": freeze})), NOW).plain.startswith("FROZEN")


def test_a_narrow_summary_breaks_between_figures() -> None:
    budget = [BudgetRow(period="month", limit_usd=20000, spent_usd=1, left_usd=19138.88)]
    cost = CostView(at=NOW, by="day", since=NOW, until=NOW, usd=861.12, month_usd=90861.12, budget=budget)
    board = replace(BOARD, cost=cost)
    wide = summary(board, NOW).plain
    for width in (120, 78, 58, 38):
        lines = summary(board, NOW, width).plain.splitlines()
        assert max(map(len, lines)) <= width
        parts = [part for line in lines for part in line.split("  ")]
        assert parts == [part for line in wide.splitlines() for part in line.split("  ")
                         if width >= 98 or not part.startswith("meshd ")]  # fmt: skip


def test_a_cluster_without_pools_says_what_to_do() -> None:
    empty = replace(BOARD, status=STATUS.model_copy(update={"pools": []}))
    assert "[pools.NAME]" in summary(empty, NOW).plain and "[pools.NAME]" not in summary(BOARD, NOW).plain


def test_the_summary_has_the_limit_with_the_least_left() -> None:
    budget = [
        BudgetRow(period="month", limit_usd=2000, spent_usd=1, left_usd=800),
        BudgetRow(pool="h100", period="day", limit_usd=50, spent_usd=1, left_usd=0, reached=True),
    ]
    cost = CostView(at=NOW, by="day", since=NOW, until=NOW, usd=4.5, month_usd=90, budget=budget)
    line = summary(replace(BOARD, cost=cost), NOW).plain.splitlines()[1]
    assert "today $4.50  month $90.00" in line and "h100: $0.00 of $50.00 a day left" in line
    assert "800" not in line


def test_problems_are_cut_above_and_whole_in_their_tab() -> None:
    rows = [ProblemView(severity="error", text=f"fault {index}", cure=f"cure {index}") for index in range(4)]
    status = STATUS.model_copy(update={"problems": rows})
    above, whole = problems(status, most=2).plain, problems(status).plain
    assert above.count("\n") == 2 and "cure" not in above and "2 more problems" in above
    assert all(f"cure {index}" in whole for index in range(4))
    assert problems(STATUS, most=2).plain == "" and problems(STATUS).plain and problems(None).plain == ""


def test_how_busy_gpus_are() -> None:
    loads = [GpuLoadRow(index=0, utilization_percent=value) for value in (0, 99)]
    assert busy(loads).plain == "50%" and busy([]).plain == "-"
