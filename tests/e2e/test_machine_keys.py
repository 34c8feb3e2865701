"""A key for each machine, for one use: in a cloud, on the node and at the control server, from launch to the end."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import pytest
import pytest_asyncio

from meshd.contract.faults import CloudFault, FaultKind, When
from tests.e2e.deleted_device import completed, device_events, nothing_wrong, told
from tests.e2e.lab import WAIT_FOR_WORD, Lab
from tests.sent import script_of

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CLOUDS = ("aws", "runpod")
SPARE = "/etc/meshd-node/tailscale.spare.key"
A_KEY = re.compile(r"tskey-auth-(\w+)-\w+")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_keys(booted: Lab) -> AsyncIterator[Lab]:
    """The settings leave the mode to meshd, which has an API credential."""
    async with booted.enabled(*CLOUDS, key_mode="") as lab:
        yield lab


@pytest.fixture
def mine(own_keys: Lab, lab: Lab) -> Lab:
    """The same, with 0 GPUs and no faults."""
    assert own_keys is lab
    return lab


async def keys(lab: Lab) -> dict[str, Any]:
    """What the control server has of keys for one machine, or for one gang: their records by their ids."""
    answer = await lab.cluster.world.tailnet.request("GET", "/api/v2/tailnet/-/keys?all=true")
    found = {key["id"]: key for key in answer["keys"]}
    return {
        key_id: key
        for key_id, key in found.items()
        if not key["capabilities"]["devices"]["create"]["reusable"] or key["description"].startswith("meshd gang")
    }


async def none_lives(lab: Lab) -> None:
    """No key for one use opens anything, and none is kept."""

    async def look() -> bool:
        kept = await lab.head.shell("ls /var/lib/meshd/ | grep -c own.json || true")
        return kept == "0" and not [key for key in (await keys(lab)).values() if not key.get("invalid")]

    await lab.until(look, "no key is left")


async def only_spares_live(lab: Lab, machines: Collection[str]) -> dict[str, str]:
    """Each machine holds a spare and no other key, and no other one for one use opens anything: the ids by machine."""

    async def look() -> dict[str, str] | None:
        living = {key_id: key for key_id, key in (await keys(lab)).items() if not key.get("invalid")}
        found = {}
        for key_id, key in living.items():
            purpose, _, tail = key["description"].removeprefix("meshd ").partition(" ")
            (name,) = [name for name in machines if tail and name.endswith(tail)] or [""]
            found[name if purpose.startswith("spare") else ""] = key_id
        kept = await lab.head.shell("ls /var/lib/meshd/ | grep -c own.json || true")
        if kept != "0" or len(living) != len(found) or set(found) != set(machines):
            return None
        for name, key_id in found.items():  # one that was used lives on by its record until the next one is held
            there = await lab.inside(name, "sh", "-c", "stat -c '%a %U %n' /etc/meshd-node/*.key", check=False)
            held = await lab.inside(name, "grep", "-c", f"tskey-auth-{key_id}-", SPARE, check=False)
            if (there, held) != (f"600 root {SPARE}", "1"):
                return None
        return found

    return await lab.until(look, "each machine holds a spare, and no other key is left", 20)


async def test_from_launch_to_the_end(mine: Lab, figure: Callable[[str], None]) -> None:
    lab = mine
    lab.room(**dict.fromkeys(CLOUDS, 1))
    up = await lab.scale(2, "--spread")
    figure(f"2 machines with keys of their own, on {' and '.join(CLOUDS)}: READY in {up['elapsed_s']:.1f} s")
    machines = lab.all_alive()
    sent = {machine.token: A_KEY.search(script_of(machine)) for machine in machines}
    assert all(sent.values()) and len({found[0] for found in sent.values() if found}) == 2
    assert not any(lab.cluster.auth_key in script_of(machine) for machine in machines)
    devices = (await lab.cluster.world.tailnet.request("GET", "/api/v2/tailnet/-/devices"))["devices"]
    joined_by = {device["hostname"]: device["authKeyId"] for device in devices}
    assert {name: found[1] for name, found in sent.items() if found}.items() <= joined_by.items()
    began = time.monotonic()
    spares = await only_spares_live(lab, sent)
    figure(f"both keys dead, and spares held, {time.monotonic() - began:.1f} s after READY")
    rows = await lab.checks()
    assert "for one use, on aws, runpod; 2 of 2 nodes hold a spare" in rows["key mode"]["text"]

    before = await lab.by_slot()
    ran = await lab.meshctl("rotate-key", "--reauth", "--timeout", "120s", timeout_s=140)
    assert ran.returncode == 0, f"{ran.stderr.decode()}\n{await lab.evidence()}"
    figure(ran.stderr.decode().strip().splitlines()[-1])
    seen = await lab.ask("rotate-key", "--status")
    assert {row["state"] for row in seen["nodes"]} == {"confirmed"} and min(r["gap_s"] for r in seen["nodes"]) > 0
    assert sorted(seen["own_key_nodes"]) == sorted(before)
    after = await lab.by_slot()
    assert {slot: row["address"] for slot, row in after.items()} == {s: r["address"] for s, r in before.items()}
    exchanged = await only_spares_live(lab, sent)
    assert not set(spares.values()) & set(exchanged.values()), "a rotation exchanges them"
    assert len(await lab.joined_slots()) == 2

    await lab.have(0)
    await lab.nothing_left()
    await none_lives(lab)
    text = await lab.head.shell("cat /var/lib/meshd/journal.db* | grep -c tskey-auth || true")
    assert text == "0", "no secret is in the journal"


async def test_a_device_deleted_under_a_job(mine: Lab, figure: Callable[[str], None]) -> None:
    """The machine comes back with its spare, and gets its old address and the next spare.

    That it does so again and again is proved with the same tailscaled and control in tests/integration/test_devices.py.
    """
    lab = mine
    await lab.have(1)
    ((slot, row),) = (await lab.by_slot()).items()
    machine, address = row["machine"], row["address"]
    job = await lab.sbatch(WAIT_FOR_WORD)
    assert await lab.running(job) == slot
    slurmd, reconfigures = await lab.inside(machine, "pgrep", "-x", "slurmd"), await lab.reconfigures()
    used = (await only_spares_live(lab, {machine}))[machine]
    event = await lab.last_event()
    await lab.delete_device(machine)
    began = time.monotonic()
    await told(lab, machine, began, figure)

    async def back() -> bool:
        return f"with its address {address}" in " ".join(await device_events(lab, machine, event))

    await lab.until(back, "it is back with its address")
    figure(f"with its spare it was back with its old address after {time.monotonic() - began:.1f} s")
    await nothing_wrong(lab, machine)
    assert (await only_spares_live(lab, {machine}))[machine] != used
    assert (await lab.job(job))["JobState"] == "RUNNING"
    assert await lab.inside(machine, "pgrep", "-x", "slurmd") == slurmd, "slurmd was not touched"
    await lab.inside(machine, "touch", f"/tmp/end-{job}")
    await completed(lab, job)
    assert await lab.reconfigures() == reconfigures, "nothing has changed for Slurm"
    await lab.have(0)
    await lab.nothing_left()
    await none_lives(lab)


async def test_what_faults_leave_behind_is_dead_too(mine: Lab) -> None:
    """A refused order, a create call whose answer is lost, and a daemon that is killed while machines boot."""
    lab = mine
    lab.fault(CloudFault(FaultKind.NO_CAPACITY, "launch"), "aws")
    lab.fault(CloudFault(FaultKind.CUT_AFTER, "launch"), "aws")
    await lab.want(2, "--provider", "aws")

    async def one_boots() -> bool:
        return bool(lab.alive("aws"))

    await lab.until(one_boots, "a machine was made")
    await lab.kill_meshd()
    await lab.ready(2)
    await lab.have(0)
    await lab.nothing_left()
    await none_lives(lab)


async def test_an_order_that_is_refused_for_good_leaves_no_key(mine: Lab) -> None:
    lab = mine
    lab.fault(CloudFault(FaultKind.NO_CAPACITY, "launch", When.ALWAYS), "aws")
    event = await lab.last_event()
    await lab.want(1, "--provider", "aws")

    async def ended() -> bool:
        found = [e for e in await lab.events(event) if e["kind"] == "auth_key"]
        return any("is over: its machine is gone" in e["text"] for e in found)

    await lab.until(ended, "its key was ended")
    await none_lives(lab)
