"""MLflow on the head: who may speak with it, and what an upgrade and a removal leave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.headmachine import MLFLOW_INSTALL
from meshd.codes import ProblemCode
from tests.e2e.lab import Lab
from tests.e2e.mlflow import UNIT, Server, mlflow, row

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

SEARCH = "/ajax-api/2.0/mlflow/experiments/search"
DATABASE = "/var/lib/meshd-mlflow/mlflow.db"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(booted: Lab) -> AsyncIterator[Server]:
    async with mlflow(booted) as found:
        yield found


@pytest.mark.any_machines
async def test_it_answers_by_its_own_names_only(lab: Lab, server: Server) -> None:
    body = json.dumps({"max_results": 1})
    own = f"http://{lab.head.tailnet_ip}:5000"
    assert (await server.call(SEARCH, body, Origin=own))[0] == 200
    assert (await server.call(SEARCH, body, Origin="http://evil.example"))[0] == 403
    assert (await server.call(SEARCH, body, Host="head:5000"))[0] == 200
    assert (await server.call(SEARCH, body, Host="evil.example:5000"))[0] == 403


@pytest.mark.any_machines
async def test_it_is_on_the_tailnet_only_and_has_no_privileges(
    lab: Lab, server: Server, figure: Callable[[str], None]
) -> None:
    listens = (await lab.head.run("ss", "-Hltn", "sport = :5000")).text.split()
    assert listens.count(f"{lab.head.tailnet_ip}:5000") == 1 and listens.count("LISTEN") == 1
    pid = (await lab.head.run("systemctl", "show", "-P", "MainPID", UNIT)).text
    status = (await lab.head.run("cat", f"/proc/{pid}/status")).text
    user = (await lab.head.run("id", "-u", UNIT)).text
    assert f"Uid:\t{user}\t{user}" in status and "CapEff:\t0000000000000000" in status
    assert (await lab.head.run("stat", "-c", "%U %a", "/srv/data/mlflow", DATABASE)).text == f"{UNIT} 755\n{UNIT} 644"
    used = (await lab.head.run("ps", "-o", "rss=", "-u", UNIT)).text.split()
    figure(f"{len(used)} processes, {sum(map(int, used)) // 1024} MiB")


@pytest.mark.any_machines
async def test_doctor_says_when_it_does_not_answer(lab: Lab, server: Server) -> None:
    await lab.head.run("systemctl", "stop", UNIT)
    try:
        found = await row(lab)
        assert (found["status"], found["code"]) == ("fail", ProblemCode.MLFLOW_UNREACHABLE)
    finally:
        # The installer of a new release starts it, and brings the database to its version.
        await lab.head.run("sed", "-i", "s/.*/3.0.0/", "/var/lib/meshd-mlflow/version")
        await lab.head.run(MLFLOW_INSTALL, "--offline")

    async def well() -> bool:
        return (await row(lab))["status"] == "ok"

    await lab.until(well, "it answers again")
    assert (await lab.head.run("test", "-s", f"{DATABASE}.before-upgrade", check=False)).returncode == 0


@pytest.mark.any_machines
async def test_an_experiment_in_a_folder_of_the_head_shows_no_home_and_changes_nothing(
    lab: Lab, server: Server
) -> None:
    """Clients choose an experiment's folder, also one of the head, and may have links there: the unit bounds that."""
    await lab.head.shell("mkdir -p /home/open /srv/other && echo x | tee /home/open/file >/srv/other/file")
    await lab.head.shell("chmod 755 /home/open && chmod 1777 /srv/other")
    api = "/api/2.0/mlflow"
    body = {"name": "planted", "artifact_location": "/srv/other"}
    _, text = await server.call(f"{api}/experiments/create", json.dumps(body))
    _, text = await server.call(f"{api}/runs/create", json.dumps(json.loads(text)))
    run = json.loads(text)["run"]["info"]
    assert run["artifact_uri"] == f"/srv/other/{run['run_id']}/artifacts"
    await lab.head.shell(f"mkdir /srv/other/{run['run_id']}")

    async def asked(link: str, name: str) -> int:
        await lab.head.shell(f"ln -sfn {link} {run['artifact_uri']}")
        return (await server.call(f"/get-artifact?run_uuid={run['run_id']}&path={name}"))[0]

    assert await asked("/srv/other", "file") == 200, "what everybody may read"
    assert await asked("/home/open", "file") != 200
    assert await asked("/etc", "shadow") != 200
    assert await asked("/etc", "../etc/hostname") != 200
    await lab.head.shell(f"ln -sfn /srv/other {run['artifact_uri']}")
    put = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run['run_id']}&path=planted"
    assert (await server.call(put, "x"))[0] != 200
    assert "planted" not in (await lab.head.shell("ls /srv/other")).split()
