"""MLflow on the head of a lab: set up as docs/services.md says, and stopped again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from deploy.sandbox.headmachine import MLFLOW_INSTALL, MLFLOW_SETTINGS
from tests.e2e.lab import Lab

UNIT = "meshd-mlflow"


@dataclass(frozen=True, slots=True)
class Server:
    """The server that runs on the head."""

    lab: Lab
    uri: str

    async def call(self, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        """Call it from the head with curl; HTTP status and body of its answer. Status 0: nobody answers."""
        words = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        if body:
            words += ["-H", "Content-Type: application/json", "-d", body]
        argv = ["curl", "-s", "-m", "20", "-w", "\n%{http_code}", *words, f"{self.uri}{path}"]
        text, _, status = (await self.lab.head.run(*argv, check=False)).text.rpartition("\n")
        return int(status), text

    async def runs(self, experiment: str) -> list[Any]:
        """The runs of an experiment, as the API tells them."""
        _, text = await self.call(f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={experiment}")
        number = json.loads(text)["experiment"]["experiment_id"]
        _, text = await self.call("/api/2.0/mlflow/runs/search", json.dumps({"experiment_ids": [number]}))
        found: list[Any] = json.loads(text).get("runs", [])
        return found


async def row(lab: Lab) -> Any:
    """What `meshctl doctor` says of it; None where it says nothing."""
    document = await lab.ask_whatever("doctor")
    return next((one for one in document["checks"] if one["name"] == "mlflow"), None)


@asynccontextmanager
async def without_mlflow_again(lab: Lab) -> AsyncIterator[None]:
    """Somebody may set up the server meanwhile: afterwards it does not run."""
    try:
        yield
    finally:
        # Not `--uninstall`: the next test could not install without PyPI.
        await lab.head.run("systemctl", "disable", "--now", UNIT, check=False)


@asynccontextmanager
async def mlflow(lab: Lab) -> AsyncIterator[Server]:
    """Have the server on the head meanwhile; each job knows of it."""
    async with lab.also(MLFLOW_SETTINGS), without_mlflow_again(lab):
        await lab.head.run(MLFLOW_INSTALL, "--offline")

        async def answers() -> bool:
            found = await row(lab)
            return found is not None and found["status"] == "ok"

        await lab.until(answers, "MLflow answers")
        yield Server(lab, f"http://{lab.head.tailnet_ip}:5000")
