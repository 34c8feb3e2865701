"""How jobs that wait for machines are shown."""

from __future__ import annotations

from datetime import timedelta

from meshd.api.schema import AttemptRow, ExplainView, NodeRow, PoolView, StatusView, WaitingRow
from meshd.cli.render import explain, status
from meshd.cli.render.terminal import plain
from tests.unit.cli.helpers import NOW, golden

BOOTS = WaitingRow(
    job="4711", user="ann", pool="h100", nodes=4, ready=2, wait="boot", until=NOW + timedelta(seconds=80),
    text="2 of 4 machines boot at aws us-east-1, ready about 03:05 UTC (90 s)",
)  # fmt: skip
REFUSED = WaitingRow(
    job="4712_3", user="bob", pool="h100", nodes=1, wait="refused", until=NOW + timedelta(minutes=26),
    text="no h100 can be had before 03:30 UTC: aws has none in 3 zones, limit 3 USD per GPU-hour",
)  # fmt: skip


def test_status_shows_them() -> None:
    pools = [PoolView(name="h100", partition="h100", ready_gpus=16)]
    view = StatusView(cluster="lab", version="1", at=NOW, pools=pools, waiting=[BOOTS, REFUSED])
    golden("waiting.txt", plain(*status.status(view)))
    many = view.model_copy(update={"waiting": [BOOTS] * (status.WAITING_SHOWN + 5)})
    assert plain(*status.status(many)).count("4711") == status.WAITING_SHOWN
    assert "5 more jobs" in plain(*status.status(many))
    assert plain(*status.status(many, verbose=True)).count("4711") == status.WAITING_SHOWN + 5


def test_a_job_is_explained() -> None:
    tried = AttemptRow(at=NOW, machine="lab-h100-1-a", offer="aws/us-east-1a/p5", provider="aws", outcome="no_capacity")
    view = ExplainView(
        subject="4712_3", job="4712_3", pool="h100", at=NOW, why=REFUSED.text, waiting=[REFUSED], rungs=[tried],
        constraints=["8 GPUs per machine, h100"],
    )  # fmt: skip
    shown = plain(*explain.explain(view))
    assert shown.startswith("job 4712_3 of bob (pool h100)\n" + REFUSED.text)
    assert shown.count(REFUSED.text) == 1
    assert "aws/us-east-1a/p5" in shown
    pool = ExplainView(subject="h100", pool="h100", at=NOW, why="Slurm's queue decides", waiting=[BOOTS, REFUSED])
    assert "4712_3" in plain(*explain.explain(pool))


def test_nodes_show_for_which_job_a_machine_was_rented() -> None:
    row = NodeRow(
        machine="lab-h100-1-abcde1", slot="h100-1", pool="h100", provider="aws", phase="booting", since=NOW,
        by_queue=True, for_jobs=["4711"],
    )  # fmt: skip
    assert "for 4711" in plain(status.nodes([row], NOW))
    ready = row.model_copy(update={"phase": "ready", "jobs": ["4800"]})
    assert "4800" in plain(status.nodes([ready], NOW)) and "for" not in plain(status.nodes([ready], NOW)).split("\n")[1]
