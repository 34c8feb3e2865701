from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from meshd.cli.main import cli
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served, serve


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
