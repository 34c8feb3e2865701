from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import capture_logs

from meshd import errors
from meshd.api import endpoints, openapi
from meshd.api.listen import SocketError, clear_stale
from meshd.api.schema import (
    ErrorView,
    EventsView,
    LogsView,
    MungeRotationView,
    NodesView,
    OffersQuery,
    RotationView,
    ScaleAnswer,
    StatusView,
)
from tests.unit.api.sim_head import SimHead, serve

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def head() -> Iterator[SimHead]:
    made = SimHead()
    yield made
    made.close()


@pytest.fixture
def path() -> Iterator[Path]:
    """A directory that every user may enter; a short path, for sun_path."""
    directory = Path(tempfile.mkdtemp(prefix="head"))
    directory.chmod(0o755)
    yield directory / "meshd.sock"
    shutil.rmtree(directory)


@pytest.fixture
def logs() -> Iterator[Logs]:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    with capture_logs() as lines:
        yield lines
    structlog.configure(wrapper_class=before)


@pytest.fixture
async def http(path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession("http://meshd", connector=aiohttp.UnixConnector(path=str(path))) as session:
        yield session


async def test_status_is_a_versioned_document(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    with serve(head, path):
        async with http.get("/v1/status") as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            body = await answer.text()
    assert json.loads(body)["schema_version"] == 1
    assert StatusView.model_validate_json(body).cluster == "lab"


async def test_the_api_describes_itself(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    with serve(head, path):
        async with http.get("/v1/openapi.json") as answer:
            assert await answer.json() == json.loads(json.dumps(openapi.document()))


@pytest.mark.parametrize(
    ("method", "page", "headers", "body", "status", "kind"),
    [
        ("GET", "/v1/status", {"Origin": "http://evil.example"}, None, 403, "denied"),
        ("GET", "/v1/status", {"Referer": "http://evil.example/x"}, None, 403, "denied"),
        ("GET", "/v1/nothing", {}, None, 404, "unknown"),
        ("DELETE", "/v1/status", {}, None, 405, "http"),
        ("POST", "/v1/scale", {"Content-Type": "text/plain"}, b'{"gpus": 1}', 415, "not_json"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b"{", 400, "bad_request"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b'{"gpus": -1}', 400, "bad_request"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b'{"gpus": 1, "gpu": 2}', 400, "bad_request"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b'{"gpus": 1, "pool": "x"}', 404, "unknown"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b'{"gpus": 999}', 409, "refused"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b" " * 70_000, 413, "too_large"),
        ("POST", "/v1/remove", {"Content-Type": "application/json"}, b'{"machine": "x"}', 404, "unknown"),
        ("GET", "/v1/events?wait_s=1e9", {}, None, 400, "bad_request"),
        ("GET", "/v1/events?limit=x", {}, None, 400, "bad_request"),
        ("GET", "/v1/events?limit=1&limit=2", {}, None, 400, "bad_request"),
        ("GET", "/v1/offers?colour=red", {}, None, 400, "bad_request"),
        ("GET", "/v1/offers?gpu=80GB", {}, None, 400, "bad_request"),
        ("GET", "/v1/offers?max_usd_per_gpu_hour=nan", {}, None, 400, "bad_request"),
        ("GET", "/v1/explain", {}, None, 400, "bad_request"),
        ("GET", "/v1/explain?subject=h100-1", {}, None, 404, "unknown"),
        ("POST", "/v1/scale", {"Content-Type": "application/json"}, b'{"gpus": 1, "gpu": "80GB"}', 400, "bad_request"),
    ],
)
async def test_refusals(
    head: SimHead,
    path: Path,
    http: aiohttp.ClientSession,
    method: str,
    page: str,
    headers: dict[str, str],
    body: bytes | None,
    status: int,
    kind: str,
) -> None:
    with serve(head, path):
        async with http.request(method, page, headers=headers, data=body) as answer:
            view = ErrorView.model_validate_json(await answer.text())
            assert (answer.status, view.kind) == (status, kind)
            assert view.error
    assert head.writers == []


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.SlurmError("scontrol says no"), 502, "slurm"),
        (errors.StoreError("disk is full"), 500, "store"),
        (errors.NoCapacity("none left", provider="aws"), 409, "no_capacity"),
        (errors.AuthFailed("key is wrong", provider="lambda"), 502, "auth_failed"),
        (errors.CommandTimeout(["scontrol"], 5), 504, "too_slow"),
        (errors.IllegalMove("gone cannot become ready"), 409, "refused"),
        (errors.MeshdError("something"), 500, "error"),
        (TimeoutError(), 504, "too_slow"),
    ],
)
async def test_errors_become_documents(
    head: SimHead, path: Path, http: aiohttp.ClientSession, error: Exception, status: int, kind: str
) -> None:
    head.give(endpoints.NODES, error)
    with serve(head, path):
        async with http.get("/v1/nodes") as answer:
            view = ErrorView.model_validate_json(await answer.text())
    assert (answer.status, view.kind) == (status, kind)
    assert view.cure


async def test_a_fault_shows_no_inside(head: SimHead, path: Path, http: aiohttp.ClientSession, logs: Logs) -> None:
    head.give(endpoints.NODES, KeyError("secret-detail"), NodesView(at=NOW))
    with serve(head, path):
        async with http.get("/v1/nodes") as answer:
            text = await answer.text()
        assert answer.status == 500
        assert "secret-detail" not in text
        assert ErrorView.model_validate_json(text).kind == "internal"
        async with http.get("/v1/nodes") as answer:
            assert answer.status == 200
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["api_fault"]


async def test_a_write_is_audited(head: SimHead, path: Path, http: aiohttp.ClientSession, logs: Logs) -> None:
    with serve(head, path, own_uid=os.getuid()):
        async with http.post("/v1/scale", json={"gpus": 4}) as answer:
            assert ScaleAnswer.model_validate_json(await answer.text()).target_id == 1
        async with http.post("/v1/scale", json={"gpus": 8, "dry_run": True}) as answer:
            assert ScaleAnswer.model_validate_json(await answer.text()).target_id is None
    writes = [line for line in logs if line["event"] == "api_write"]
    assert len(writes) == 1
    assert writes[0]["uid"] == os.getuid()
    assert writes[0]["pid"] == os.getpid()
    assert writes[0]["outcome"] == "accepted"
    assert writes[0]["request"] == {"gpus": 4}


async def held(head: SimHead, count: int) -> None:
    """Wait until so many requests wait for events."""
    while head.waiting[endpoints.EVENTS] < count:  # noqa: ASYNC110 - they are in another thread
        await asyncio.sleep(0.01)


async def test_events_wait(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    with serve(head, path):

        async def later() -> None:
            await held(head, 1)
            await asyncio.to_thread(head.event, "note", "hello")

        waiting = asyncio.create_task(later())
        async with http.get("/v1/events?after_id=0&wait_s=30") as answer:
            view = EventsView.model_validate_json(await answer.text())
        await waiting
        assert [e.text for e in view.events] == ["hello"]
        async with http.get(f"/v1/events?after_id={view.last_id}") as answer:
            assert EventsView.model_validate_json(await answer.text()).events == []


async def test_what_is_repeated_in_a_query_is_a_list(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    with serve(head, path):
        for query in ("provider=aws", "provider=aws&provider=gce&spot=false&gpu=NVIDIA%20H100%20PCIe"):
            async with http.get(f"/v1/offers?{query}") as answer:
                assert answer.status == 200, await answer.text()
    assert head.asked(endpoints.OFFERS) == [
        OffersQuery(provider=("aws",)), OffersQuery(provider=("aws", "gce"), spot=False, gpu="h100-pcie"),
    ]  # fmt: skip


async def test_a_list_may_have_one_item(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    head.give(endpoints.LOGS, LogsView(machine="m", slot="a100-1", provider="aws", phase="ready"))
    with serve(head, path):
        async with http.get("/v1/logs?machine=a100-1&part=slurmd") as answer:
            assert answer.status == 200
    assert head.asked(endpoints.LOGS)[-1].part == ("slurmd",)


async def test_a_stop_sends_waiters_away(head: SimHead, path: Path, http: aiohttp.ClientSession) -> None:
    head.frozen = True
    with serve(head, path):
        waiting = asyncio.create_task(http.get("/v1/events?after_id=0&wait_s=30").__aenter__())
        await held(head, 1)
        began = time.monotonic()
    answer = await waiting
    assert time.monotonic() - began < 20
    assert answer.status == 503
    assert ErrorView.model_validate_json(await answer.text()).kind == "not_ready"
    answer.release()
    assert not path.exists()


async def test_one_user_cannot_take_all_waits(head: SimHead, path: Path) -> None:
    head.frozen = True
    connector = aiohttp.UnixConnector(path=str(path), limit=0)
    async with aiohttp.ClientSession("http://meshd", connector=connector) as http:
        with serve(head, path):

            async def poll() -> int:
                async with http.get("/v1/events?after_id=0&wait_s=30") as answer:
                    return answer.status

            polls = [asyncio.create_task(poll()) for _ in range(40)]
            await held(head, 32)
            while sum(one.done() for one in polls) < 8:
                await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
            await asyncio.to_thread(head.event, "note", "hello")
            statuses = await asyncio.gather(*polls)
            assert statuses.count(429) == 8
            assert await poll() == 200


def test_everybody_may_connect(head: SimHead, path: Path) -> None:
    with serve(head, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert not path.exists()


def test_a_stale_socket_is_taken_over(head: SimHead, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with serve(head, path):
        assert path.is_socket()


def test_a_live_socket_is_not(head: SimHead, path: Path) -> None:
    with serve(head, path):
        with pytest.raises(SocketError, match=re.escape(str(path))), serve(head, path):
            pass
        with socket.socket(socket.AF_UNIX) as alive:
            alive.connect(str(path))
            alive.sendall(b"GET /v1/status HTTP/1.1\r\nHost: meshd\r\nConnection: close\r\n\r\n")
            assert alive.recv(12) == b"HTTP/1.1 200"


def test_a_file_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketError, match=re.escape(str(path))):
        clear_stale(path)
    assert path.read_text() == "precious"


AS_SOMEBODY = """
import http.client, json, os, socket, sys
uid, gid, *extra = map(int, sys.argv[2:])
os.setgroups(extra); os.setgid(gid); os.setuid(uid)
class Conn(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.settimeout(60); self.sock.connect(sys.argv[1])
out = []
for method, page, body in (("GET", "/v1/status", None), ("GET", "/v1/caller", None),
                           ("GET", "/v1/logs?machine=a100-1", None),
                           ("POST", "/v1/scale", '{"gpus": 4}'), ("POST", "/v1/scale", '{"gpus": 4, "dry_run": true}'),
                           ("POST", "/v1/rotate-key", '{"dry_run": true}'),
                           ("POST", "/v1/auth-key/rotation/abort", "{}"),
                           ("POST", "/v1/munge-key/rotation", '{"dry_run": true}'),
                           ("POST", "/v1/munge-rotation", '{"action": "abort", "dry_run": true}')):
    c = Conn("meshd"); c.request(method, page, body, {"Content-Type": "application/json"} if body else {})
    r = c.getresponse(); out.append([r.status, json.loads(r.read())]); c.close()
print(json.dumps(out))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("case", ["stranger", "primary group", "supplementary group", "own uid", "no such account"])
def test_roles_of_other_users(head: SimHead, path: Path, case: str) -> None:
    nobody = pwd.getpwnam("nobody")
    uid, gid, extra, group, own = nobody.pw_uid, nobody.pw_gid, [], "no-such-group", 0
    if case == "primary group":
        gid, group = 7, _group_name(7)
    elif case == "supplementary group":  # of the process only: the account database does not know it
        extra, group = [7], _group_name(7)
    elif case == "own uid":
        own = uid
    elif case == "no such account":
        uid, gid = 54321, 54321
    argv = [sys.executable, "-I", "-c", AS_SOMEBODY, str(path), str(uid), str(gid), *map(str, extra)]
    head.give(endpoints.LOGS, LogsView(machine="m", slot="a100-1", provider="aws", phase="ready"))
    head.give(endpoints.ROTATE_AUTH_KEY, RotationView(at=NOW))
    head.give(endpoints.ROTATE_MUNGE_KEY, MungeRotationView(at=NOW))
    with serve(head, path, group=group, own_uid=own):
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    status, caller, logs, scale, dry_run, key_dry, key_abort, munge_dry, munge_abort = json.loads(done.stdout)
    may_write = case in ("primary group", "own uid")
    assert status[0] == 200
    assert caller[1]["uid"] == uid
    assert caller[1]["may_write"] is may_write
    assert [answer[0] for answer in (dry_run, key_dry, munge_dry)] == [200] * 3, (
        "whoever may look may ask what would be"
    )
    if not may_write:
        assert [answer[0] for answer in (key_abort, munge_abort)] == [403] * 2, "an abort is no dry run"
    assert (logs[0], bool(head.asked(endpoints.LOGS))) == ((200, True) if may_write else (403, False))
    assert scale[0] == (200 if may_write else 403)
    assert head.writers == ([uid] if may_write else [])
    if not may_write:
        assert scale[1]["kind"] == "denied"
        assert group in scale[1]["cure"]


def _group_name(gid: int) -> str:
    import grp

    return grp.getgrgid(gid).gr_name
