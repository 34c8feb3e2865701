from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from meshd.api.schema import CheckRow, ProblemView
from meshd.cli.doctor_checks import run_checks
from meshd.cli.errors import ExitCode
from meshd.cli.main import COMMANDS, cli
from meshd.cli.render.terminal import age as age_text
from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.runtime.run import Result
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MESHD_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.fixture
def still(desk: MemoryDesk) -> MemoryDesk:
    """A desk whose world stands still at one moment."""
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


def test_golden_status(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    golden("status.txt", meshctl("status").out)


def test_golden_nodes(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    golden("nodes.txt", meshctl("nodes").out)


def test_golden_plan(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    golden("plan.txt", meshctl("plan", "--gpus", "20").out)


def test_json_documents_carry_their_version(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    still.event("note", "hello")
    for argv in (["status"], ["nodes"], ["plan"], ["events"], ["doctor"], ["version"], ["drain", "a100-1"]):
        ran = meshctl(*argv, "-o", "json")
        assert ran.code == 0, (argv, ran.err)
        assert ran.json()["schema_version"] == 1, argv


def test_foreign_text_cannot_steer_the_terminal(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    still.event("note", "evil \x1b]0;title\x07 text")
    for argv in (["status"], ["nodes"], ["events"]):
        assert "\x1b" not in meshctl(*argv).out


def test_plan_exit_code(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("plan", "--exit-code").code == 0
    assert meshctl("plan", "--gpus", "20", "--exit-code").code == 3
    assert meshctl("plan", "--gpus", "20").code == 0
    assert meshctl("plan", "--pool", "a100").code == 2


def test_drain_remove_and_partly_done(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("drain", "a100-1", "--reason", "fan").code == 0
    assert still.boxes[0].drained
    assert meshctl("undrain", "lab-a100-1-k7q2m1").code == 0
    assert not still.boxes[0].drained
    ran = meshctl("drain", "a100-1", "a100-9", "-o", "json")
    assert ran.code == 6
    assert [m["slot"] for m in ran.json()["machines"]] == ["a100-1"]
    assert ran.json()["failed"][0]["machine"] == "a100-9"
    assert meshctl("drain", "a100-8", "a100-9").code == 2
    ran = meshctl("remove", "a100-9", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "unknown")
    ran = meshctl("remove", "a100-1")
    assert ran.code == 2
    ran = meshctl("remove", "a100-1", "--yes")
    assert ran.code == 0
    assert "job 4711, 4712" in ran.err and still.jobs, "it waits for the jobs"
    ran = meshctl("remove", "a100-1", "--force", "--yes")
    assert "job 4711, 4712" in ran.err
    assert still.jobs == {}


def test_events(still: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    for index in range(5):
        still.event("note", f"number {index}", machine="lab-a100-1-k7q2m1" if index % 2 else "")
    assert [line.split("  ")[-1] for line in meshctl("events", "-n", "2").out.splitlines()] == [
        "lab-a100-1-k7q2m1: number 3",
        "number 4",
    ]
    rows = meshctl("events", "--machine", "a100-1", "-o", "json").json()["events"]
    assert [row["text"] for row in rows] == ["number 1", "number 3"]
    assert [row["id"] for row in meshctl("events", "--after", "4", "-o", "json").json()["events"]] == [5]


def test_events_follow_prints_one_document_a_line(served: Served, socket_path: Path) -> None:
    served.desk.frozen = True
    served.desk.event("note", "before")
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd.cli.main", "--socket", str(socket_path), "events", "--follow", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["text"] == "before"
        served.desk.event("note", "after")
        line = json.loads(process.stdout.readline())
        assert (line["text"], line["schema_version"]) == ("after", 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_doctor(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("doctor")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "ok    slurm: 24.11.5 answers")
    served.desk.checks = [CheckRow(name="munge", status="fail", text="no key", cure="run `meshctl init`")]
    ran = meshctl("doctor")
    assert ran.code == 1
    assert "fail  munge: no key\n      do: run `meshctl init`\n" in ran.out


def test_version(served: Served, meshctl: Meshctl) -> None:
    assert "slurm         24.11.5" in meshctl("version").out


@pytest.mark.parametrize(
    "argv", [c for c in COMMANDS if c in ("status", "nodes", "plan", "events", "doctor", "version")]
)
def test_unreachable(meshctl: Meshctl, socket_path: Path, argv: str) -> None:
    ran = meshctl(argv)
    assert ran.code == 4
    assert str(socket_path) in ran.err + ran.out
    assert "systemctl" in ran.err + ran.out
    ran = meshctl(argv, "-o", "json")
    assert ran.code == 4
    assert ran.json()["schema_version"] == 1


def test_a_socket_without_a_listener(meshctl: Meshctl, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
    ran = meshctl("status")
    assert ran.code == 4


def test_a_daemon_that_hangs(socket_path: Path) -> None:
    import asyncio

    from meshd.api import endpoints
    from meshd.cli.client import Head
    from meshd.cli.errors import UnreachableError

    async def ask() -> None:
        async with Head(socket_path, timeout_s=0.2) as head:
            await head.call(endpoints.STATUS)

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(socket_path))
        mute.listen()
        with pytest.raises(UnreachableError):
            asyncio.run(ask())


def test_a_newer_daemon_is_understood(served: Served, meshctl: Meshctl) -> None:
    from meshd.api.schema import StatusView

    view = StatusView.model_validate({"schema_version": 7, "cluster": "x", "version": "9", "at": NOW, "new": {"a": 1}})
    assert view.cluster == "x"


def test_every_command_has_help(meshctl: Meshctl) -> None:
    for name in COMMANDS:
        ran = meshctl(name, "--help")
        assert ran.code == 0
        assert "130 " not in ran.out, "the exit codes have a page of their own"
        assert meshctl("help", name).out == ran.out
    ran = meshctl("--help")
    assert "..." not in ran.out.partition("Commands:")[2], "every summary fits into 80 columns"
    assert "meshctl help exit-codes" in ran.out
    assert meshctl("help").out == ran.out
    assert meshctl("help", "config", "check").out == meshctl("config", "check", "--help").out
    assert meshctl("nonsense").code == 2


def test_the_exit_codes_have_one_page(meshctl: Meshctl) -> None:
    ran = meshctl("help", "exit-codes")
    assert ran.code == 0
    for code in ExitCode:
        assert f"\n  {code.value:<4} " in ran.out


@pytest.mark.parametrize(
    ("words", "hint"), [(["stauts"], "status"), (["config", "chekc"], "check"), (["exit"], "exit-codes")]
)
def test_help_on_what_there_is_not(meshctl: Meshctl, words: list[str], hint: str) -> None:
    ran = meshctl("help", *words)
    assert ran.code == 2 and hint in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(meshctl: Meshctl, shell: str) -> None:
    assert "_MESHCTL_COMPLETE" in meshctl("completion", shell).out


def _complete(socket_path: Path, args: list[str], incomplete: str) -> list[str]:
    complete = BashComplete(cli, {}, "meshctl", "_MESHCTL_COMPLETE")
    return [item.value for item in complete.get_completions(["--socket", str(socket_path), *args], incomplete)]


def test_names_are_completed_from_the_daemon(
    still: MemoryDesk, served: Served, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.cli.params.completion.TIMEOUT_S", 60.0)  # nobody presses TAB here
    assert _complete(socket_path, ["nodes", "--pool"], "a") == ["a100"]
    assert "lab-a100-1-k7q2m1" in _complete(socket_path, ["remove"], "lab-")
    assert _complete(socket_path, ["remove"], "a100-3") == ["a100-3"]
    assert _complete(socket_path.with_name("absent"), ["remove"], "lab-") == []


def test_completion_does_not_wait_for_a_daemon_that_hangs(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(socket_path))
        mute.listen()
        began = time.monotonic()
        assert _complete(socket_path, ["remove"], "lab-") == []
        assert time.monotonic() - began < 20


def test_config_check(meshctl: Meshctl, tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\nnmae = 1\n[pools.a100]\nmax_nodes = 0\n')
    ran = meshctl("config", "check", config=str(path))
    assert ran.code == 1
    assert "cluster.nmae" in ran.out and "pools.a100.max_nodes" in ran.out
    path.write_text('[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n[providers.nimbus]\n')
    ran = meshctl("config", "check", "-o", "json", config=str(path))
    assert ran.code == 1
    found = [(c["status"], c["name"]) for c in ran.json()["checks"]]
    assert found == [("ok", str(path)), ("warn", "auth key"), ("fail", f"{path}:5")]
    path.write_text('[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n')
    assert meshctl("config", "check", config=str(path)).code == 0
    assert meshctl("config", "check", config=str(tmp_path / "none")).code == 1
    path.write_text('[cluster]\nname = "lab"\n[tailnet]\nkey_mode = "per_machine"\n')
    ran = meshctl("config", "check", "-o", "json", config=str(path))
    (fault,) = [row for row in ran.json()["checks"] if row["status"] == "fail"]
    assert fault["name"] == "tailnet.key_mode" and "docs/tailnet.md" in fault["text"]


def test_config_check_looks_for_the_auth_key(meshctl: Meshctl, tmp_path: Path) -> None:
    path, key = tmp_path / "meshd.toml", tmp_path / "key"

    def check(tailnet: str = "") -> list[tuple[str, str]]:
        path.write_text(f'[cluster]\nname = "lab"\n[tailnet]\n{tailnet}\n[pools.a100]\ngpu = "a100"\n')
        ran = meshctl("config", "check", "-o", "json", config=str(path))
        rows = [(row["name"], row["status"]) for row in ran.json()["checks"][1:]]
        return [row for row in rows if row[0] != "providers"]

    assert check() == [("auth key", "warn")]
    assert check(f'auth_key_file = "{key}"') == [(str(key), "fail")]
    key.write_text("tskey-auth-k1-x")
    assert check(f'auth_key_file = "{key}"') == []
    (tmp_path / "credentials" / "tailscale").mkdir(parents=True)
    (tmp_path / "credentials" / "tailscale" / "api_token").write_text("tskey-api-x")
    (tmp_path / "credentials" / "tailscale" / "api_token").chmod(0o600)
    assert check() == [], "keys of their own can be minted"


ADAPTER = """
from meshd.runtime.secretfile import read_secret
from meshd.errors import ConfigError
from meshd.provider_api import ProviderCapabilities
class Provider:
    name = "nimbus"
    capabilities = ProviderCapabilities()
    async def aclose(self): pass
def create(context):
    if set(context.settings) - {"region"}:
        raise ConfigError("providers.nimbus", ["regoin: unknown key"])
    if read_secret(None, "nimbus_api_key") is None:
        raise ConfigError("providers.nimbus", ["no api key"])
    return Provider()
"""


def test_config_check_asks_the_adapters(meshctl: Meshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "nimbus-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nimbus\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[meshd.providers]\nnimbus = nimbus_adapter_for_test:create\nbroken = no_such_module_here:create\n"
    )
    (tmp_path / "site" / "nimbus_adapter_for_test.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "meshd.toml"

    def check(provider: str) -> list[tuple[str, str]]:
        path.write_text(f'[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n{provider}\n')
        ran = meshctl("config", "check", "-o", "json", config=str(path))
        return [(row["status"], row["text"]) for row in ran.json()["checks"][1:] if row["name"] != "auth key"]

    assert check("[providers.nimbus]\nregoin = 1") == [("fail", "providers.nimbus: regoin: unknown key")]
    assert check("[providers.nimbus]") == [("fail", "providers.nimbus: no api key")]
    (tmp_path / "credentials" / "nimbus").mkdir(parents=True)
    (tmp_path / "credentials" / "nimbus" / "api_key").write_text("secret")
    (tmp_path / "credentials" / "nimbus" / "api_key").chmod(0o600)
    assert [status for status, _ in check("[providers.nimbus]")] == ["ok"]
    assert check("[providers.nimbus]\nenabled = false\nregoin = 1")[0][0] == "warn"
    assert "no_such_module_here" in check("[providers.broken]")[0][1]
    assert "CREDENTIALS_DIRECTORY" not in os.environ


def test_values_that_no_request_may_have(meshctl: Meshctl, served: Served) -> None:
    for argv, option in (
        (["drain", "x" * 100], "NODE"),
        (["scale", "--gpus", "10000000"], "--gpus"),
        (["scale", "--gpus", "1", "--max-price", "nan"], "--max-price"),
        (["scale", "--gpus", "1", "--pool", ""], "--pool"),
        (["scale", "--gpus", "1", "--gpu", ""], "--gpu"),
        (["offers", "--region", ""], "--region"),
        (["plan", "--gpus", "1", "--provider", " "], "--provider"),
        (["offers", "--max-price", "inf"], "--max-price"),
    ):
        ran = meshctl(*argv)
        assert ran.code == 2, argv
        assert "Error: " in ran.err and option in ran.err.partition("Error: ")[2], argv


@pytest.mark.parametrize(
    ("typed", "meant"), [("rotate", "rotate-key"), ("offer", "offers"), ("stauts", "status"), ("evnets", "events")]
)
def test_a_mistyped_command_is_answered_with_those_that_are_near(meshctl: Meshctl, typed: str, meant: str) -> None:
    ran = meshctl(typed)
    assert ran.code == 2 and f"No such command '{typed}'. Did you mean {meant}?" in ran.err
    assert "Did you mean" not in meshctl("xyzzy").err


def test_an_empty_answer_is_told_from_a_mistyped_name(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("nodes", "--pool", "a10", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "unknown") and "a100" in ran.json()["cure"]
    ran = meshctl("nodes", "--pool", "a100")
    assert (ran.code, ran.out) == (0, "") and ran.err
    assert meshctl("events").err


def test_local_checks(tmp_path: Path) -> None:
    import asyncio

    async def run(argv: Sequence[str], **_: object) -> Result:
        result = Result(tuple(argv), 0, "", "")
        match argv[0]:
            case "systemctl":
                return replace(result, stdout="active\n") if "slurm" in argv[2] else replace(result, stdout="failed\n")
            case "scontrol":
                return replace(result, stdout="Slurmctld(primary) at head is UP\n")
            case "munge":
                raise CommandError(["munge"], 1, "Failed to access munge.socket.2")
            case "tailscale":
                raise CommandTimeout(["tailscale"], 5)
        raise CommandNotFound(argv[0])

    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\n')
    rows = {row.name: row for row in asyncio.run(run_checks(path, run))}
    assert {name: row.status for name, row in rows.items()} == {
        str(path): "ok",
        "meshd.service": "fail",
        "slurmctld.service": "ok",
        "slurm": "ok",
        "munge": "fail",
        "tailscale": "fail",
    }
    assert all(row.cure for row in rows.values() if row.status == "fail")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m00s"), (3661, "1h01m"), (90000, "1d1h"), (-5, "0s")],
)
def test_age(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text
