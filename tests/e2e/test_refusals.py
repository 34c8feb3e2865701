"""Machines that cannot become nodes are given back, and the words say why and what to do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.host import BootDefaults
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ZONE = "us-east-1a"
KEY = "/etc/meshd/credentials/tailscale/auth_key"


@dataclass(frozen=True)
class GivenUp:
    """How it ended: the failure as told by events, and the problems that `meshctl status` showed."""

    failure: str
    status: str
    seconds: float


async def given_up(lab: Lab, refused_for: str = "", **deadline: float) -> GivenUp:
    """Ask for one machine that cannot become a node; wait until it is given back.

    Args:
        lab: the cluster.
        refused_for: words of a refusal that time might mend: the machine has the time of a busy host to meet with it.
        deadline: the key of the settings' `timing` that is set then, so that the deadline passes.
    """
    ever, event, began = len(lab.ledger()), await lab.last_event(), time.monotonic()
    await lab.want(1, "--provider", "aws", "--region", ZONE)

    async def refused() -> bool:
        return any(refused_for in e["text"] for e in await lab.events(event))

    if refused_for:
        await lab.until(refused, f"it is refused for now: {refused_for}")
        await lab.timing(**deadline)

    async def ended() -> GivenUp | None:
        failures = [e for e in await lab.events(event) if e["kind"] == "failure"]
        status = await lab.problems()
        born = lab.ledger()[ever:]
        if not failures or not born or lab.alive() or failures[0]["text"].split(": ", 1)[1][:40] not in status:
            return None
        return GivenUp(failures[0]["text"], status, time.monotonic() - began)

    found = await lab.until(ended, "the machine is given back")
    assert len(lab.ledger()) == ever + 1, "the zone's only offer is left alone, so no second one is rented"
    await none_joined(lab)
    return found


async def none_joined(lab: Lab) -> None:
    """Wait until Slurm has free slots only."""

    async def free() -> bool:
        return not await lab.joined_slots()

    await lab.until(free, "Slurm has free slots only")


async def test_fewer_gpus_than_rented(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.boot(BootDefaults(missing_gpus=1))
    end = await given_up(lab)
    figure(f"{end.seconds:.1f} s: {end.failure}")
    assert "1 GPUs were rented and nvidia-smi shows 0" in end.failure
    assert "driver" in end.failure


async def test_slurmd_too_old(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.boot(BootDefaults(image="bookworm"))
    end = await given_up(lab)
    figure(f"{end.seconds:.1f} s: {end.failure}")
    assert "slurmd 22.05" in end.failure
    assert "too old for slurmctld 24.11" in end.failure
    assert "use an image with slurmd 24.11" in end.failure


async def test_a_wrong_clock(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.boot(BootDefaults(clock_offset_s=600))
    end = await given_up(lab, "s ahead of the head's", join_timeout_s=0.5)
    figure(f"{end.seconds:.1f} s: {end.failure}")
    assert "600 s ahead of the head's" in end.failure
    assert "NTP" in end.failure


async def key_from_file(lab: Lab) -> str:
    """Put a new auth key into the file; its id, once meshd has proved it and uses it."""
    key_id, secret = await lab.cluster.world.tailnet.mint_key(description="put there by hand")
    await lab.head.write(KEY, secret, "0600")
    await lab.restart_meshd()

    async def in_use() -> bool:
        seen = await lab.answer("rotation")
        return seen["in_use"]["id"] == key_id and not seen["active"]

    await lab.until(in_use, "the new key is in use")
    return key_id


@pytest_asyncio.fixture(loop_scope="session")
async def dead_key(lab: Lab) -> AsyncIterator[Lab]:
    """The auth key in use was revoked."""
    await lab.cluster.world.tailnet.revoke_key(await key_from_file(lab))
    yield lab
    await key_from_file(lab)


async def test_a_dead_auth_key(dead_key: Lab, figure: Callable[[str], None]) -> None:
    """Where the tailnet's API tells in time, nothing is rented; else the machine gives up and is given back."""
    lab = dead_key
    began = time.monotonic()
    await lab.want(1)

    async def told() -> str:
        status = await lab.problems()
        return status if "expired or revoked" in status and not lab.alive() else ""

    status = await lab.until(told, "the dead key is told and no machine runs")
    figure(f"{time.monotonic() - began:.1f} s: {status}")
    assert "auth key" in status
    assert "put a new" in status
    await none_joined(lab)


@pytest_asyncio.fixture(loop_scope="session")
async def two_keys(lab: Lab) -> AsyncIterator[Lab]:
    """The head's munged has another key than the one that meshd was started with, and hands out."""
    await lab.head.shell("cp -a /etc/munge/munge.key /root/munge.key; head -c 1024 /dev/urandom >/etc/munge/munge.key;"
                         "systemctl restart munge slurmctld")  # fmt: skip
    yield lab
    await lab.head.shell("cp -a /root/munge.key /etc/munge/munge.key; systemctl restart munge slurmctld")


async def test_two_munge_keys(two_keys: Lab, figure: Callable[[str], None]) -> None:
    lab = two_keys
    end = await given_up(lab, "do not have the same munge key", configure_timeout_s=0.5)
    figure(f"{end.seconds:.1f} s: {end.failure}")
    assert "munge" in end.failure
    assert "same" in end.failure
    assert "key" in end.failure
    assert "systemctl restart munge meshd" in end.failure


@pytest.mark.any_machines
async def test_another_key_on_the_machine(lab: Lab, figure: Callable[[str], None]) -> None:
    """Somebody changes the machine's key: the agent notices at its next start and says so; the node is not lost."""
    await lab.have(1)
    ((slot, machine),) = (await lab.by_slot()).items()
    name, event = machine["machine"], await lab.last_event()
    await lab.inside(name, "sh", "-ec", "cp -a /etc/munge/munge.key /root/k; head -c 1024 /dev/urandom >/root/new;"
                     "cat /root/new >/etc/munge/munge.key; systemctl restart munge meshd-node")  # fmt: skip

    async def told() -> str | None:
        texts = [e["text"] for e in await lab.events(event) if e["machine"] == name]
        return next((text for text in texts if "do not have the same munge key" in text), None)

    figure(await lab.until(told, "the events tell of it"))
    assert set(await lab.nodes()) == {name}
    await lab.inside(name, "sh", "-ec", "cat /root/k >/etc/munge/munge.key; systemctl restart munge meshd-node")

    async def works() -> bool:
        row = (await lab.nodes())[name]
        return row["phase"] == "ready" and name not in await lab.problems()

    await lab.until(works, "its munge is proved again")
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") == slot
