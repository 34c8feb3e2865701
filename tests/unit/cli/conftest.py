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

from meshd.api.schema import ProblemView
from meshd.cli.main import cli
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served, serve
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
def desk() -> MemoryDesk:
    return MemoryDesk()


@pytest.fixture
def served(desk: MemoryDesk, socket_path: Path) -> Iterator[Served]:
    with serve(desk, socket_path, own_uid=os.getuid()) as running:
        yield running


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


@pytest.fixture
def still(desk: MemoryDesk) -> MemoryDesk:
    """A fleet in which no time passes."""
    desk.now = lambda: NOW
    desk.frozen = True
    desk.pools["a100"].target = 12
    desk.add_ready("a100", 1, since=NOW - timedelta(hours=2, minutes=5))
    desk.add_ready("a100", 2, phase="booting", since=NOW - timedelta(seconds=42), reason="aws has it")
    desk.add_ready("a100", 3, phase="lost", since=NOW - timedelta(days=2), failure="aws does not end it")
    desk.jobs = {"a100-1": ["4711", "4712"]}
    desk.problems = [
        ProblemView(
            severity="error",
            text="aws does not end it: \x1b[31mInternalError",
            cure="end it in the console",
            since=NOW - timedelta(days=2),
            machine="lab-a100-3-k7q2m3",
        ),
        ProblemView(severity="warning", text="prices of [aws] are a day old", pool="a100"),
    ]
    return desk
