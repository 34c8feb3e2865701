"""The check of MLflow's server: it answers, it is MLflow, and only the tailnet reaches it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from meshd.codes import ProblemCode
from meshd.config import MlflowSettings
from meshd.daemon.observe.mlflow import MlflowReporter, elsewhere, listening

HEAD = "127.0.0.1"

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100407A:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000   994        0 1 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100407A:1388 0200407A:9999 01 00000000:00000000 00:00000000 00000000   994        0 3 1 0 100 0 0 10 0
   3: 00000000:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr
   0: 00000000000000000000000000000000:1389 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0
   1: 0000000000000000FFFF00000100007F:1388 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0
   2: 5C117AFD0000E0A10000000001000000:138A 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0
"""


@pytest.mark.parametrize(
    ("table", "port", "found"),
    [
        (TCP, 5000, {"122.64.0.1"}),
        (TCP, 22, {"0.0.0.0"}),
        (TCP, 23, set()),
        (TCP6, 5001, {"::"}),
        (TCP6, 5002, {"fd7a:115c:a1e0::1"}),
        ("", 5000, set()),
    ],
)
def test_where_a_port_is_open(table: str, port: int, found: set[str]) -> None:
    assert listening(table, port) == found


def test_the_kernel_of_this_machine_is_read_alike() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening(Path("/proc/net/tcp").read_text(), server.getsockname()[1]) == {"127.0.0.1"}


def test_who_else_reaches_it() -> None:
    assert elsewhere(["100.64.0.1", "127.0.0.1", "::1"], "100.64.0.1") == []
    assert elsewhere(["0.0.0.0", "::", "10.0.0.7"], "100.64.0.1") == ["0.0.0.0", "10.0.0.7", "::"]


Start = Callable[[web.Response], Awaitable[int]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server whose /version answers so; its port."""
    runners: list[web.AppRunner] = []

    async def begin(answer: web.Response) -> int:
        async def version(_: web.Request) -> web.Response:
            return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

        app = web.Application()
        app.router.add_get("/version", version)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, HEAD, 0).start()
        return int(runner.addresses[0][1])

    yield begin
    for runner in runners:
        await runner.cleanup()


def reporter(port: int, head: str = HEAD, *, enabled: bool = True, sockets: tuple[Path, ...] = ()) -> MlflowReporter:
    settings = MlflowSettings(enabled=enabled, port=port)
    return MlflowReporter(lambda: settings, lambda: head, sockets)


async def test_a_server_that_answers_on_the_tailnet_only_is_well(start: Start) -> None:
    port = await start(web.Response(text="3.17.2"))
    row = await reporter(port, sockets=(Path("/proc/net/tcp"), Path("/proc/net/none"))).check()
    assert (row.status, row.code) == ("ok", "") and "3.17.2" in row.text


async def test_a_server_that_others_reach_is_exposed(start: Start, tmp_path: Path) -> None:
    port = await start(web.Response(text="3.17.2"))
    table = tmp_path / "tcp"
    table.write_text(TCP.replace(":1388", f":{port:04X}").replace("0100407A", "00000000"))
    row = await reporter(port, sockets=(table,)).check()
    assert (row.status, row.code) == ("fail", ProblemCode.MLFLOW_EXPOSED)


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(text="<html>", status=200),
        web.Response(text="3.17.2", status=404),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        web.Response(body=b"\xff" * 1000000),
    ],
)
async def test_another_program_at_the_port_is_no_mlflow(start: Start, answer: web.Response) -> None:
    row = await reporter(await start(answer)).check()
    assert (row.status, row.code) == ("fail", ProblemCode.MLFLOW_UNREACHABLE)


async def test_nobody_at_the_port() -> None:
    with socket.create_server((HEAD, 0)) as server:
        port = server.getsockname()[1]
    row = await reporter(port).check()
    assert (row.status, row.code) == ("fail", ProblemCode.MLFLOW_UNREACHABLE)


async def test_without_an_address_nothing_can_be_said() -> None:
    row = await reporter(5000, head="").check()
    assert (row.status, row.code) == ("warn", ProblemCode.CHECK_NOT_POSSIBLE)


def test_who_has_no_mlflow_hears_nothing_of_it() -> None:
    assert list(reporter(5000, enabled=False).checks()) == []
    assert len(list(reporter(5000).checks())) == 1
