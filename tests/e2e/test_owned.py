"""Owned machines: invited, used in one job with a rented one, away and back in the same slot, evicted without a trace.

One machine serves most scenarios. Each boots a machine that no stand-in of a cloud knows, behind NAT.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from deploy.sandbox.mirror import Mirror, ensure_mirror
from deploy.sandbox.owned import Entry, OwnedMachine, differences
from deploy.sandbox.proc import Result
from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

TABLES = """\
[pools.h100]
gpu = "h100"
gpus_per_node = 1
max_nodes = 12
cpus_min = 1
memory_min_mib = 1024
default = true
spot = "never"
providers = ["static", "aws"]

[providers.static]
"""

ALLOWED = {
    "var/lib/dpkg/diversions-old": "dpkg's copy of the file before its last change",
    "var/lib/dpkg/status-old": "dpkg's copy of the file before its last change",
    "var/lib/munge/munged.seed": "munged writes other random bytes each time it stops",
}
"""What may differ on a disk from which meshd was taken off, and why."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def owners(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster, which takes owned machines, and an archive for what they lack."""
    async with (
        booted.enabled("aws", pools=TABLES, key_mode=""),
        Mirror(booted.cluster.world.network, await ensure_mirror("trixie")),
    ):
        yield booted


async def invite(lab: Lab, name: str, *more: str) -> str:
    """The script of a new invitation."""
    result = await lab.meshctl("invite", "--pool", "h100", "--name", name, "--output", "-", *more)
    assert result.returncode == 0, result
    return result.stdout.decode()


async def host(lab: Lab, name: str) -> Any:
    """Its row in `meshctl hosts`; None where there is none."""
    rows = (await lab.ask("hosts"))["hosts"]
    return next((row for row in rows if row["name"] == name), None)


async def node_of(lab: Lab, *names: str) -> dict[str, Any]:
    """Wait until these hosts are nodes: their rows in `meshctl nodes`, by host."""

    async def look() -> dict[str, Any] | None:
        nodes = await lab.nodes()
        rows = {name: nodes.get((await host(lab, name))["machine"]) for name in names}
        return rows if all(row and row["phase"] == "ready" for row in rows.values()) else None

    return await lab.until(look, f"{', '.join(names)} are nodes")


async def evicted(lab: Lab, *machines: OwnedMachine) -> None:
    """Remove hosts, and wait until nothing of meshd runs on them."""
    names = [machine.name for machine in machines]
    for name in names:
        result = await lab.meshctl("remove", name, "--yes")
        assert result.returncode == 0, result

    async def gone() -> bool:
        left = [await host(lab, name) for name in names]
        there = [await machine.run("test", "-e", "/opt/meshd-host", check=False) for machine in machines]
        return not any(left) and all(one.returncode for one in there)

    await lab.until(gone, f"{', '.join(names)} are evicted")


def said(result: Result) -> str:
    return result.stderr.decode().strip()


@asynccontextmanager
async def owned(lab: Lab, *names: str) -> AsyncIterator[list[OwnedMachine]]:
    """Machines that have booted; they are removed afterwards, with what meshd did on them shown after a failure."""
    machines = [OwnedMachine(lab.cluster.world, name) for name in names]
    try:
        await asyncio.gather(*(machine.boot() for machine in machines))
        yield machines
    except BaseException:
        for machine in machines:
            look = "journalctl --no-pager -n 200 -o cat -u meshd-host -u meshd-node; tail /var/lib/meshd-host/*.log"
            sys.stderr.write(f"--- {machine.name}\n{(await machine.run('sh', '-c', look, check=False)).text}\n")
        raise
    finally:
        await asyncio.gather(*(machine.destroy() for machine in machines))
        for name in names:
            if await host(lab, name):
                await lab.meshctl("remove", name, "--force", "--yes")


def same(before: dict[str, Entry], after: dict[str, Entry]) -> None:
    """The disk is as it was, but for `ALLOWED`."""
    found = {path: what for path, what in differences(before, after).items() if path not in ALLOWED}
    assert not found, "\n".join(f"{path}: {what}" for path, what in found.items())


async def test_a_machine_that_no_cloud_knows(owners: Lab, lab: Lab, figure: Callable[[str], None]) -> None:
    async with owned(lab, "tower", "attic") as (tower, attic):
        before = [await machine.manifest() for machine in (tower, attic)]
        script, began = await invite(lab, "tower", "--usd-per-hour", "0.1"), time.monotonic()
        redeemed = await tower.redeem(script)
        assert redeemed.returncode == 0, said(redeemed)
        enrolled = time.monotonic() - began
        row = (await node_of(lab, "tower"))["tower"]
        figure(f"enrolled {enrolled:.0f} s, READY {time.monotonic() - began:.0f} s after the script began")
        assert row["provider"] == "static"
        slot = row["slot"]

        # its invitation is used up, there and on another machine, which stays as it was
        assert (await tower.redeem(script)).returncode != 0
        second = asyncio.create_task(attic.redeem(script))

        # one job on it and on a rented machine
        await lab.want(2)
        job = await lab.sbatch(WAIT_FOR_WORD, "--nodes=2", "--gpus=2")
        await lab.running(job)
        listed = (await lab.job(job))["NodeList"]
        assert slot in (await lab.head.run("scontrol", "show", "hostnames", listed)).text.split()
        await lab.head.run("scancel", job)

        assert (await second).returncode != 0
        same(before[1], await attic.manifest())

        # it reboots, and is a node in the same slot
        machine = row["machine"]
        booted = await tower.boot_id()
        await tower.run("systemctl", "reboot", check=False)

        async def again() -> bool:
            return await tower.boot_id() not in ("", booted)

        await lab.until(again, "tower has booted again")
        row = (await node_of(lab, "tower"))["tower"]
        assert row["slot"] == slot
        figure("the same machine after the reboot" if row["machine"] == machine else "another machine after the reboot")

        began = time.monotonic()
        await evicted(lab, tower)
        figure(f"evicted after {time.monotonic() - began:.0f} s")
        same(before[0], await tower.manifest())
        assert (await tower.run("uname", "-n")).text == "tower"
        assert "tower" not in await lab.devices()


@pytest.mark.nightly  # tests/unit/node/test_node_invitation.py has each refusal
async def test_a_machine_that_is_refused_stays_as_it_was(owners: Lab, lab: Lab) -> None:
    async with owned(lab, "attic") as (attic,):
        first = await attic.manifest()

        # late: nothing is changed
        script = await invite(lab, "attic", "--expires", "60s")
        late = re.sub(r"-lt [0-9]{10} \]", "-lt 1 ]", script, count=1)
        assert late != script
        assert "expired" in said(await attic.redeem(late))
        same(first, await attic.manifest())

        # another Slurm
        await attic.run("sh", "-c", "mkdir /etc/slurm; echo ClusterName=other >/etc/slurm/slurm.conf")
        assert "slurm.conf" in said(await attic.redeem(script))
        await attic.run("rm", "-r", "/etc/slurm")

        # munge with its own key: left alone while it runs; set aside otherwise
        await attic.run("sh", "-ec", "apt-get -q update; apt-get -qy install munge", timeout_s=120)
        own = (await attic.run("sha256sum", "/etc/munge/munge.key")).text
        before = await attic.manifest()
        script = await invite(lab, "attic")
        assert "munged runs" in said(await attic.redeem(script))
        same(before, await attic.manifest())
        await attic.run("systemctl", "disable", "--now", "munge")
        before = await attic.manifest()
        redeemed = await attic.redeem(script)
        assert redeemed.returncode == 0, said(redeemed)
        await node_of(lab, "attic")
        assert (await attic.run("sha256sum", "/etc/munge/munge.key")).text != own
        await evicted(lab, attic)
        assert (await attic.run("sha256sum", "/etc/munge/munge.key")).text == own
        same(before, await attic.manifest())
