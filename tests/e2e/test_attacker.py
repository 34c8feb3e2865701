"""A user with a job looks for the cluster's secrets on a node and asks the head with what he finds: he gets nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from meshd.contract.faults import CloudFault, FaultKind
from tests.e2e.lab import USER, WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CLOUDS = ("aws", "gce")
ATTACK = Path(__file__).with_name("attack.py").read_text()
PORT = 7677
KEYS = ("/etc/munge/munge.key", "/etc/meshd-node/node.token", "/etc/meshd-node/tailscale.key")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clouds(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with the clouds that have a metadata service."""
    async with booted.enabled(*CLOUDS) as lab:
        yield lab


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def nodes(clouds: Lab) -> AsyncIterator[Lab]:
    """One READY node of each of them."""
    lab = clouds
    await lab.begin(__name__)
    lab.room(**dict.fromkeys(CLOUDS, 1))
    assert (await lab.scale(len(CLOUDS), "--spread"))["outcome"] == "reached"
    yield lab


async def as_user(lab: Lab, slot: str, given: dict[str, Any]) -> Any:
    """Run the attack as a user's job on a node."""
    argv = ["runuser", "-u", USER, "--", "srun", "--chdir=/tmp", f"--nodelist={slot}", "python3", "-c", ATTACK]
    return json.loads((await lab.head.run(*argv, stdin=json.dumps(given).encode(), timeout_s=240)).text)


async def as_root(lab: Lab, machine: str, given: dict[str, Any]) -> Any:
    """Run it as root of the machine."""
    (found,) = [m for m in lab.all_alive() if m.token == machine]
    run = lab.cluster.world.hypervisor.run
    result = await run(found.name, ["python3", "-c", ATTACK], stdin=json.dumps(given).encode(), timeout_s=120)
    return json.loads(result.text)


def reached(told: Any) -> list[str]:
    """Which ways to the metadata service answered."""
    return [way for way, (status, _) in told["metadata"].items() if status]


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_user_of_a_node_gets_no_secret_of_the_cluster(nodes: Lab, cloud: str) -> None:
    lab = nodes
    (row,) = [row for row in (await lab.nodes()).values() if row["provider"] == cloud]
    (machine,) = [m for m in lab.alive(cloud) if m.token == row["machine"]]
    key = await lab.inside(row["machine"], "sha256sum", KEYS[0])
    node_token = await lab.inside(row["machine"], "cat", KEYS[1])
    (join_token,) = re.findall(r'"token":"([^"]+)"', machine.user_data)
    auth_keys = re.findall(r"tskey-auth-[\w-]+", machine.user_data)
    given = {
        "search": True, "digests": [key.split()[0]], "head": lab.head.tailnet_ip, "port": PORT, "tokens": [join_token],
    }  # fmt: skip
    told = await as_user(lab, row["slot"], given)
    assert told["uid"] >= 1000
    assert reached(told) == [], "the metadata service answers nobody but root"
    assert told["search"]["read"] > 100
    assert told["search"]["files"] == []
    assert not {join_token, node_token, *auth_keys} & told["search"]["words"].keys(), told["search"]["words"]
    # 0: the head holds no more connections for strangers on this address; its agent's own is kept.
    assert {status for _, status, _ in told["node api"]} <= {0, 401, 403, 429}, told["node api"]
    assert "ticket_closed" in str(told["node api"])

    everything = await as_root(lab, row["machine"], {**given, "head": ""})
    status, text = everything["metadata"]["gce" if cloud == "gce" else "ec2 v2"]
    assert (status, text) == (200, machine.user_data), "stage 1 and cloud-init are root's, and are not kept out"
    if cloud == "aws":
        assert everything["metadata"]["ec2 v1"][0] == 401, "only its second version is there"
    found = everything["search"]
    assert KEYS[0] in found["files"]
    assert found["words"].get(node_token) == KEYS[1], "it has no second copy"
    assert found["words"].get(join_token, "").startswith("/var/lib/cloud/"), "it is in cloud-init's own cache alone"
    assert hashlib.sha256(node_token.encode()).hexdigest() not in str(told)


async def test_after_a_reboot_the_metadata_service_is_closed_before_jobs_come(nodes: Lab) -> None:
    lab = nodes
    (row,) = [row for row in (await lab.nodes()).values() if row["provider"] == "aws"]
    await lab.reboot(row["machine"])
    assert reached(await as_user(lab, row["slot"], {})) == []
    assert "ec2 v2" in reached(await as_root(lab, row["machine"], {}))
    assert (await lab.inside(row["machine"], "systemctl", "is-active", "meshd-metadata")) == "active"


async def test_a_machine_that_left_keeps_no_secret(clouds: Lab, lab: Lab) -> None:
    lab.fault(CloudFault(FaultKind.NEVER_ENDS, "launch"), "aws")
    await lab.have(1)
    ((name, _),) = (await lab.nodes()).items()
    assert await lab.inside(name, "ls", *KEYS)
    await lab.ask("remove", name, "--yes")

    async def left() -> bool:
        return (await lab.nodes())[name]["phase"] in {"terminating", "lost"}

    await lab.until(left, "it has left")
    assert await lab.inside(name, "sh", "-c", f"ls {' '.join(KEYS)} 2>/dev/null; true") == ""


@pytest.mark.any_machines
async def test_node_tokens_are_renewed_while_a_job_runs(clouds: Lab, lab: Lab) -> None:
    await lab.have(1)
    ((name, row),) = (await lab.nodes()).items()
    before = await lab.inside(name, "cat", KEYS[1])
    job = await lab.sbatch(WAIT_FOR_WORD)
    await lab.running(job)

    view = await lab.ask("rotate-key", "--tokens", "--yes", timeout_s=120)
    assert [(node["machine"], node["state"], node["generation"]) for node in view["nodes"]] == [(name, "done", 1)]
    after = await lab.inside(name, "cat", KEYS[1])
    assert before != after
    assert await poll_status(lab, name, before) == "401"

    # The agent is killed, then meshd: both go on with the new token.
    await lab.inside(name, "systemctl", "kill", "-s", "KILL", "meshd-node")
    await lab.kill_meshd()

    async def speaks() -> bool:
        age = (await lab.nodes())[name]["heartbeat_age_s"]
        return age is not None and age < 5

    await lab.until(speaks, "the agent speaks with its new token")
    assert await poll_status(lab, name, before) == "401"
    assert (await lab.job(job))["Restarts"] == "0"
    await lab.inside(name, "touch", f"/tmp/end-{job}")
    await lab.completed(job)
    assert row["slot"] in await lab.slots()


async def poll_status(lab: Lab, machine: str, token: str) -> str:
    """The HTTP status of a poll with a token, from the machine itself."""
    url = f"http://{lab.head.tailnet_ip}:{PORT}/v1/poll"
    argv = [
        "curl",
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-d",
        "{}",
        "-H",
        f"Authorization: Bearer {token}",
        url,
    ]
    return await lab.inside(machine, *argv)
