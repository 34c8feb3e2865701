from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from meshd.api import endpoints
from meshd.api.schema import (
    NodeRow,
    NodesView,
    PathRow,
    PlannedRow,
    PlanView,
    PoolView,
    ProblemView,
    QueueView,
    SpendView,
    StatusView,
    StepRow,
)
from meshd.cli.main import cli
from tests.unit.api.sim_head import SimHead, serve
from tests.unit.cli.helpers import NOW


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Meshctl = Callable[..., Ran]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="ctl"))
    yield directory / "meshd.sock"
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The server's log would land in this process's stdout."""
    with capture_logs():
        yield


@pytest.fixture
def head() -> Iterator[SimHead]:
    made = SimHead()
    yield made
    made.close()


@pytest.fixture
def served(head: SimHead, socket_path: Path) -> Iterator[SimHead]:
    with serve(head, socket_path, own_uid=os.getuid()):
        yield head


@pytest.fixture
def meshctl(socket_path: Path) -> Meshctl:
    def run(*argv: str, config: str = "") -> Ran:
        if not config:
            (settings := socket_path.with_name("meshd.toml")).touch()
            config = str(settings)
        done = CliRunner().invoke(cli, ["--config", config, "--socket", str(socket_path), *argv], prog_name="meshctl")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run


PLAIN = {"pool": "a100", "provider": "aws", "region": "eu-west-1", "instance_type": "p4d.24xlarge"}
NODES = NodesView(
    at=NOW,
    nodes=[
        NodeRow(
            machine=f"lab-a100-{index}-k7q2m{index}", slot=f"a100-{index}", gpu="a100", gpus=4, usd_per_hour=10,
            **{"slurm_state": "DOWN", **PLAIN, **one},
        )
        for index, one in enumerate((
            {"phase": "ready", "since": NOW - timedelta(hours=2, minutes=5), "jobs": ["4711", "4712"],
             "address": "100.64.0.7", "path": "relay fra", "slurm_state": "IDLE", "heartbeat_age_s": 1,
             "head_path": PathRow(kind="derp", relay="fra", rtt_ms=48.2, throughput_estimate="low", age_s=12)},
            {"phase": "booting", "since": NOW - timedelta(seconds=42), "reason": "aws has it"},
            {"phase": "lost", "since": NOW - timedelta(days=2), "failure": "aws does not end it"},
        ), 1)
    ],
)  # fmt: skip
STATUS = StatusView(
    cluster="lab", version="0.1.0", at=NOW, uptime_s=7384, tick_at=NOW, tick_age_s=2,
    pools=[PoolView(name="a100", partition="a100", target_gpus=12, ready_gpus=4, usd_per_hour=30,
                    machines={"ready": 1, "booting": 1, "lost": 1}, queue=QueueView(running=1, pending=1))],
    problems=[
        ProblemView(severity="error", text="aws does not end it: \x1b[31mInternalError", cure="end it in the console",
                    since=NOW - timedelta(days=2), machine="lab-a100-3-k7q2m3"),
        ProblemView(severity="warning", text="prices of [aws] are a day old", pool="a100"),
    ],
    spend=SpendView(usd_per_hour=30, usd_so_far=12.5),
)  # fmt: skip
PLAN = PlanView(
    usd_per_hour_before=30, usd_per_hour_after=60, adds=3,
    steps=[StepRow(action="request_machine", subject=f"a100-{index}", reason="20 GPUs wanted") for index in (4, 5, 6)],
    machines=[PlannedRow(slot=f"a100-{index}", offer="aws/eu-west-1/p4d.24xlarge", gpu="a100-sxm", gpus=4,
                         usd_per_hour=10, usd_per_gpu_hour=2.5, **PLAIN) for index in (4, 5, 6)],
)  # fmt: skip


@pytest.fixture
def still(head: SimHead) -> SimHead:
    """A head that always says the same."""
    head.frozen = True
    head.give(endpoints.STATUS, STATUS)
    head.give(endpoints.NODES, NODES)
    head.give(endpoints.PREVIEW, PLAN)
    return head
