"""A real Prometheus on the head: with the settings and rules that are shipped, and with short times."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from deploy.sandbox.headmachine import NAME
from deploy.sandbox.network import Network
from deploy.sandbox.prometheus import ensure_prometheus
from tests.e2e.lab import Lab, Unanswered
from tests.unit.obs.shipped import PROMETHEUS

PORT = 9090
FOR_S = 2
"""How long a condition of an alert holds until the alert fires, where it is not at once."""
TABLES = '[metrics]\nlisten = "127.0.0.1:9679"\n\n[budget]\nusd_per_month = 100000\n'


class Prometheus:
    """The server, as its API tells it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address

    async def _get(self, path: str) -> Any:
        try:
            reader, writer = await self._network.connect(self._address, PORT)
        except OSError as error:
            raise Unanswered(f"Prometheus: {error}") from error
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: head\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        told = json.loads(body) if b"json" in head else {}
        if told.get("status") != "success":
            raise Unanswered(f"Prometheus, {path}: {body[:300].decode()}")
        return told["data"]

    async def query(self, expression: str) -> list[Any]:
        """The values of an expression now: `metric` has the labels."""
        data = await self._get(f"/api/v1/query?query={quote(expression)}")
        return [data] if data["resultType"] == "scalar" else list(data["result"])

    async def names(self) -> set[str]:
        """All names of series."""
        return set(await self._get("/api/v1/label/__name__/values"))

    async def targets(self, job: str) -> list[Any]:
        """The targets of a job."""
        return [one for one in (await self._get("/api/v1/targets"))["activeTargets"] if one["scrapePool"] == job]

    async def fires(self, alert: str) -> bool:
        """Whether it fires."""
        return bool(await self.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}'))


def _hurried(folder: Path) -> Path:
    """Write the shipped files with short times; the settings."""
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    for job in settings["scrape_configs"]:
        for found in job.get("http_sd_configs", []):
            found["refresh_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    rules = (PROMETHEUS / "meshd.rules.yml").read_text()
    (folder / "meshd.rules.yml").write_text(re.sub(r"(?m)^( +for): \S+$", rf"\1: {FOR_S}s", rules))
    return folder / "prometheus.yml"


@asynccontextmanager
async def prometheus(lab: Lab, folder: Path) -> AsyncIterator[Prometheus]:
    """Have meshd serve its metrics, and Prometheus scrape them, meanwhile. `folder`: for its files."""
    program, settings = await ensure_prometheus() / "prometheus", _hurried(folder)
    async with lab.also(TABLES):
        # The table of metrics is read when meshd starts.
        await lab.restart_meshd()
        # In the head's network, with the host's files: nothing of it comes onto the head.
        leader = (await lab.head.root()).parent
        argv = [
            *("nsenter", f"--net={leader}/ns/net", "--", str(program), f"--config.file={settings}"),
            *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=0.0.0.0:{PORT}"),
        ]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log)
        try:
            world = lab.cluster.world
            yield Prometheus(world.network, world.hypervisor.address(NAME))
        finally:
            process.terminate()
            await process.wait()
    await lab.restart_meshd()


async def run_node_exporter(lab: Lab, machine: str, address: str) -> None:
    """Put node_exporter onto a node, and start it on the node's address on the tailnet."""
    name = "prometheus-node-exporter"
    program = await ensure_prometheus() / name
    await lab.inside(machine, "sh", "-ec", f"cat >/usr/local/bin/{name}; chmod 755 /usr/local/bin/{name}",
                     stdin=program.read_bytes())  # fmt: skip
    await lab.inside(machine, "systemd-run", f"--unit={name}", f"/usr/local/bin/{name}",
                     f"--web.listen-address={address}:9100")  # fmt: skip
