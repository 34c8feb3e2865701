"""Starts MLflow's server on the head's tailnet address. meshd-mlflow.service runs it; needs only the standard library.

It waits for the address, brings the database to MLflow's version, and becomes `mlflow server`. What it does follows
from the table [mlflow] of meshd.toml:

    port        where the server listens, on the tailnet alone
    artifacts   folder for models and other files of runs; without it they lie beside the database

Exit codes: 0 never, 1 with a line that says what is wrong, otherwise that of `mlflow server`.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/etc/meshd/meshd.toml")
STATE = Path("/var/lib/meshd-mlflow")
PORT = 5000
LOOK_S = 1.0
STATUS_TIMEOUT_S = 10
UPGRADE_TIMEOUT_S = 600
ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else eight more processes and 2 GB
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Fault(Exception):
    """The server cannot be started; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What [mlflow] says."""

    port: int = PORT
    artifacts: str = ""


@dataclass(frozen=True)
class Tailnet:
    """What the head is on the tailnet: its IPv4 address, and its full name there, or ""."""

    address: str
    name: str = ""


def settings_of(text: str) -> Settings:
    """What the text of meshd.toml says. Raises Fault."""
    try:
        table = tomllib.loads(text).get("mlflow", {})
        found = Settings(port=table.get("port", PORT), artifacts=table.get("artifacts", ""))
    except (ValueError, AttributeError) as error:
        raise Fault(f"the settings cannot be read: {error}") from error
    if not isinstance(found.port, int) or not 0 < found.port < 65536 or not isinstance(found.artifacts, str):
        raise Fault("the table [mlflow] of the settings is wrong: meshctl config check")
    return found


def tailnet_of(status: str) -> Tailnet | None:
    """The head, as `tailscale status --json` tells it; None while it is not on the tailnet."""
    try:
        document = json.loads(status)
        device = document["Self"] if document["BackendState"] == "Running" else {}
        addresses = [address for address in device.get("TailscaleIPs") or [] if ":" not in address]
    except (ValueError, KeyError, TypeError):
        return None
    return Tailnet(addresses[0], str(device.get("DNSName", "")).rstrip(".")) if addresses else None


def arguments(settings: Settings, tailnet: Tailnet, hostname: str, state: Path = STATE) -> list[str]:
    """The words behind `mlflow`.

    The server answers only by the names that people use for it: a page that their browser has from elsewhere cannot
    speak with it. Its own pages send such a name as their origin.
    """
    names = dict.fromkeys(filter(None, (tailnet.address, hostname, tailnet.name, tailnet.name.partition(".")[0])))
    hosts = [f"{name}:{settings.port}" for name in names]
    return [
        "server",
        f"--host={tailnet.address}",
        f"--port={settings.port}",
        f"--allowed-hosts={','.join(hosts)}",
        f"--cors-allowed-origins={','.join(f'http://{host}' for host in hosts)}",
        f"--backend-store-uri=sqlite:///{state / 'mlflow.db'}",
        f"--artifacts-destination={settings.artifacts or state / 'artifacts'}",
        "--workers=1",
    ]


def wait_for_tailnet(port: int) -> Tailnet:
    """Wait until the head has its address and the port is free there."""
    said = ""
    while True:
        try:
            argv = ["tailscale", "status", "--json", "--peers=false"]
            answer = subprocess.run(argv, capture_output=True, text=True, timeout=STATUS_TIMEOUT_S, check=False)
            tailnet = tailnet_of(answer.stdout)
            waits_for = "the tailnet" if tailnet is None else may_listen(tailnet.address, port)
        except (OSError, subprocess.TimeoutExpired) as error:
            tailnet, waits_for = None, f"tailscale ({error})"
        if tailnet is not None and not waits_for:
            return tailnet
        if waits_for != said:
            said = waits_for
            print(f"waits for {said}", flush=True)
        time.sleep(LOOK_S)


def may_listen(address: str, port: int) -> str:
    """What keeps a server from listening there; "" for nothing."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port}, which another program has on {address}: see `ss -ltnp`"
            return f"{address}: {error.strerror}"
    return ""


def upgrade(mlflow: str, version: str, state: Path = STATE) -> None:
    """Bring the database to this version of MLflow, once; a copy of it before that stays. Raises Fault."""
    database, note = state / "mlflow.db", state / "version"
    before = note.read_text().strip() if note.exists() else ""
    if before == version:
        return
    if database.exists():
        print(f"upgrades the database from MLflow {before or 'of unknown version'} to {version}", flush=True)
        shutil.copyfile(database, state / "mlflow.db.before-upgrade")
        argv = [mlflow, "db", "upgrade", f"sqlite:///{database}"]
        done = subprocess.run(argv, timeout=UPGRADE_TIMEOUT_S, check=False, cwd=state)
        if done.returncode != 0:
            raise Fault(f"the database was not upgraded: {done.returncode}. {state}/mlflow.db.before-upgrade is a copy")
    note.write_text(f"{version}\n")


def main() -> int:
    """Start the server; returns only when that fails."""
    mlflow = str(Path(sys.executable).parent / "mlflow")
    try:
        settings = settings_of(SETTINGS.read_text("utf-8-sig"))
        version = importlib.metadata.version("mlflow")
        upgrade(mlflow, version)
        tailnet = wait_for_tailnet(settings.port)
        argv = [mlflow, *arguments(settings, tailnet, socket.gethostname())]
        print(f"MLflow {version} listens on http://{tailnet.address}:{settings.port}", flush=True)
        os.execve(mlflow, argv, {**os.environ, **ENVIRONMENT})  # noqa: S606
    except (Fault, OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError) as error:
        print(f"meshd-mlflow: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
