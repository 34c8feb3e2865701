"""MLflow's installer and launcher: what is installed, how the server is started, when its database is upgraded."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/services/mlflow"
UNIT = (FOLDER / "meshd-mlflow.service").read_text()

spec = importlib.util.spec_from_file_location("mlflow_serve", FOLDER / "serve.py")
assert spec is not None and spec.loader is not None
serve = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = serve
spec.loader.exec_module(serve)


def test_every_locked_package_has_hashes_and_the_server_is_among_them() -> None:
    text = (FOLDER / "requirements.txt").read_text()
    packages = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []
    (wanted,) = (FOLDER / "requirements.in").read_text().split()
    assert wanted in {package.split()[0] for package in packages}


def test_the_settings_are_those_of_meshd(tmp_path: Path) -> None:
    from meshd import config

    text = '[cluster]\nname = "lab"\n[mlflow]\nenabled = true\nport = 5001\nartifacts = "/data/mlflow"\n'
    path = tmp_path / "meshd.toml"
    path.write_text(text)
    found, theirs = serve.settings_of(text), config.load(path).mlflow
    assert (found.port, found.artifacts) == (theirs.port, theirs.artifacts) == (5001, "/data/mlflow")
    assert serve.settings_of("") == serve.Settings(port=config.MlflowSettings().port)


@pytest.mark.parametrize("text", ["[mlflow", 'mlflow = "x"', "[mlflow]\nport = 70000", "[mlflow]\nartifacts = 1"])
def test_wrong_settings_are_a_fault(text: str) -> None:
    with pytest.raises(serve.Fault):
        serve.settings_of(text)


def status(**device: object) -> str:
    return json.dumps({"BackendState": "Running", "Self": device})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (status(TailscaleIPs=["100.64.0.1", "fd7a::1"], DNSName="head.a.ts.net."), ("100.64.0.1", "head.a.ts.net")),
        (status(TailscaleIPs=["fd7a::1", "100.64.0.1"]), ("100.64.0.1", "")),
        (status(TailscaleIPs=["fd7a::1"]), None),
        (status(TailscaleIPs=None), None),
        (json.dumps({"BackendState": "NeedsLogin", "Self": {"TailscaleIPs": ["100.64.0.1"]}}), None),
        ("", None),
        ("[]", None),
    ],
)
def test_the_tailnet_address(text: str, found: tuple[str, str] | None) -> None:
    assert serve.tailnet_of(text) == (found and serve.Tailnet(*found))


def test_the_server_listens_on_the_tailnet_and_answers_by_its_names_only() -> None:
    words = serve.arguments(
        serve.Settings(5001, "/data/mlflow"), serve.Tailnet("100.64.0.1", "head.a.ts.net"), "slurm-head"
    )
    given = dict(word.removeprefix("--").split("=", 1) for word in words[1:])
    hosts = ["100.64.0.1:5001", "slurm-head:5001", "head.a.ts.net:5001", "head:5001"]
    assert words[0] == "server"
    assert (given["host"], given["port"], given["workers"]) == ("100.64.0.1", "5001", "1")
    assert given["allowed-hosts"].split(",") == hosts
    assert given["cors-allowed-origins"].split(",") == [f"http://{host}" for host in hosts]
    assert given["artifacts-destination"] == "/data/mlflow"
    assert given["backend-store-uri"] == "sqlite:////var/lib/meshd-mlflow/mlflow.db"


def test_a_port_that_another_program_has_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert str(port) in serve.may_listen("127.0.0.1", port)
    assert serve.may_listen("127.0.0.1", port) == ""
    assert serve.may_listen("192.0.2.1", port) != "", "no address of this machine"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Notes how it was called, in the state directory."""
    path = tmp_path / "mlflow"
    path.write_text('#!/bin/sh\necho "$*" >>calls\n[ ! -e fail ]\n')
    path.chmod(0o755)
    return str(path)


def test_the_database_is_upgraded_once_for_each_version_and_copied_before(program: str, tmp_path: Path) -> None:
    calls, database = tmp_path / "calls", tmp_path / "mlflow.db"
    serve.upgrade(program, "3.1", tmp_path)
    assert not calls.exists(), "there was none: the server makes it"
    database.write_text("of 3.1")
    serve.upgrade(program, "3.1", tmp_path)
    assert not calls.exists()
    serve.upgrade(program, "3.2", tmp_path)
    serve.upgrade(program, "3.2", tmp_path)
    assert calls.read_text() == f"db upgrade sqlite:///{database}\n"
    assert (tmp_path / "mlflow.db.before-upgrade").read_text() == "of 3.1"


def test_an_upgrade_that_failed_is_tried_again(program: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text("3.1\n")
    (tmp_path / "mlflow.db").write_text("of 3.1")
    (tmp_path / "fail").touch()
    with pytest.raises(serve.Fault):
        serve.upgrade(program, "3.2", tmp_path)
    assert (tmp_path / "version").read_text() == "3.1\n"
    (tmp_path / "fail").unlink()
    serve.upgrade(program, "3.2", tmp_path)
    assert (tmp_path / "version").read_text() == "3.2\n"


def installer(script: str) -> subprocess.CompletedProcess[str]:
    """Some lines behind the installer's functions."""
    text = (FOLDER / "install").read_text()
    functions = text[: text.index("\nwheels=\n")]
    argv = ["sh", "-euc", f"{functions}\n{script}", str(FOLDER / "install")]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def test_the_artifacts_are_read_from_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text('[mlflow]\nartifacts = "/data/mlflow"\n')
    assert installer(f"settings={path}; artifacts").stdout == "/data/mlflow\n"
    path.write_text("")
    assert installer(f"settings={path}; artifacts").stdout == "\n"
    path.write_text("[mlflow")
    assert installer(f"settings={path}; artifacts").returncode == 1


@pytest.mark.parametrize("folder", ["data", "/data/ml flow", "/data/%h", "/nowhere/at/all/mlflow"])
def test_a_folder_that_cannot_hold_artifacts_is_refused(folder: str) -> None:
    done = installer(f"make_artifacts '{folder}'")
    assert done.returncode == 1 and done.stderr


def test_the_unit_has_no_privileges_and_sees_the_tailnet_only() -> None:
    for line in (
        "User=meshd-mlflow", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict",
        "IPAddressDeny=any", "IPAddressAllow=localhost 100.64.0.0/10 fd7a:115c:a1e0::/48",
    ):  # fmt: skip
        assert f"\n{line}\n" in UNIT
