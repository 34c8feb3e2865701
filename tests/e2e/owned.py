"""Owned machines as their owners see them: invited, nodes, evicted; and nothing of them is left afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from deploy.sandbox.mirror import Mirror, ensure_mirror
from deploy.sandbox.owned import Entry, OwnedMachine, differences
from deploy.sandbox.proc import CommandError, Result
from tests.documents import Block
from tests.e2e.lab import PATIENCE_S, SERVICES, USER, Lab
from tests.e2e.recipes import Person, instead

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
{more}

[providers.static]
"""
EVICT_S = 60.0
"""Many times what an eviction takes. A machine that is not through by then is broken: the head forgets it."""
LOOK = "journalctl --no-pager -n 200 -o cat -u meshd-host -u meshd-node; tail /var/lib/meshd-host/*.log"

ALLOWED = {
    "var/lib/dpkg/diversions-old": "dpkg's copy of the file before its last change",
    "var/lib/dpkg/status-old": "dpkg's copy of the file before its last change",
    "var/lib/munge/munged.seed": "munged writes other random bytes each time it stops",
}
"""What may differ on a disk from which meshd was taken off, and why."""


@asynccontextmanager
async def taking_hosts(lab: Lab, suite: str, pool: str) -> AsyncIterator[Lab]:
    """The cluster takes owned machines meanwhile, and an archive has what they lack.

    Args:
        lab: the cluster.
        suite: Debian's, of the archive.
        pool: lines that the pool has besides.
    """
    folder = await ensure_mirror(suite)
    async with (
        lab.enabled("aws", pools=TABLES.format(more=pool), key_mode=""),
        Mirror(lab.cluster.world.network, folder),
    ):
        yield lab


@asynccontextmanager
async def owned(lab: Lab, *names: str, **kind: Any) -> AsyncIterator[list[OwnedMachine]]:
    """Machines that have booted. Afterwards nothing is left of them; after a failure, what meshd did there is shown.

    Args:
        lab: the cluster.
        names: what they are called.
        kind: what OwnedMachine takes besides.
    """
    machines = [OwnedMachine(lab.cluster.world, name, **kind) for name in names]
    try:
        await _all(machine.boot() for machine in machines)
        yield machines
    except BaseException:
        for machine in machines:
            with suppress(KeyError, RuntimeError, OSError, CommandError):
                machine.resume()
                sys.stderr.write(f"--- {machine.name}\n{(await machine.run('sh', '-c', LOOK, check=False)).text}\n")
        raise
    finally:
        await _clear(lab, machines)


async def _clear(lab: Lab, machines: list[OwnedMachine]) -> None:
    """Evict the hosts; one that cannot be, since it is broken, is forgotten once its machine is gone."""
    for machine in machines:
        with suppress(KeyError):  # it has never booted
            machine.resume()
    await lab.head.run("systemctl", "start", *SERVICES, timeout_s=60)
    await lab.head.run("scancel", "-u", USER, check=False)
    try:
        with suppress(AssertionError):
            await lab.no_hosts(EVICT_S)
    finally:
        await _all(machine.destroy() for machine in machines)
    await lab.no_hosts()
    for name in {machine.name for machine in machines} & await lab.devices():
        await lab.delete_device(name)  # it was logged in, and never became a host


async def _all(calls: Any) -> None:
    """Wait for all, also when one fails. Raises what the first one raised."""
    waits: list[Awaitable[Any]] = list(calls)
    for result in await asyncio.gather(*waits, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def invite(lab: Lab, name: str, *more: str) -> str:
    """The script of a new invitation."""
    result = await lab.meshctl("invite", "--pool", "h100", "--name", name, "--output", "-", *more)
    assert result.returncode == 0, result
    return result.stdout.decode()


async def invite_as(lab: Lab, block: Block, words: Mapping[str, str]) -> str:
    """Type a page's invitation, with other words for some; the script that it writes."""
    (ran,) = await Person(lab, "root").block(block, instead=instead({"--pool desk": "--pool h100", **words}))
    file = f"/root/{ran.command.rpartition('--output ')[2]}"
    script = (await lab.head.run("cat", file)).stdout.decode()
    await lab.head.run("rm", file)
    return script


async def hosts(lab: Lab) -> dict[str, Any]:
    """As `meshctl hosts` shows them, by name."""
    return {row["name"]: row for row in (await lab.answer("hosts"))["hosts"]}


async def host_is(lab: Lab, name: str, *states: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait until a host is in one of these states; its row."""

    async def look() -> Any:
        row = (await hosts(lab)).get(name)
        return row if row is not None and row["state"] in states else None

    return await lab.until(look, f"{name} is {' or '.join(states)}", timeout_s)


async def nodes_of(lab: Lab, *names: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Wait until these hosts are nodes: their rows in `meshctl nodes`, by host."""

    async def look() -> dict[str, Any] | None:
        nodes, known = await lab.nodes(), await hosts(lab)
        rows = {name: nodes.get(known[name]["machine"]) for name in names if name in known}
        ready = [row for row in rows.values() if row and row["phase"] == "ready"]
        return rows if len(ready) == len(names) else None

    return await lab.until(look, f"{', '.join(names)} are nodes", timeout_s)


async def evicted(lab: Lab, *machines: OwnedMachine, name: str = "", timeout_s: float = PATIENCE_S) -> None:
    """Remove hosts, and wait until nothing of meshd runs on them. `name` is what one machine was invited as."""
    names = sorted({name or machine.name for machine in machines})
    result = await lab.meshctl("remove", "--yes", *names)
    assert result.returncode == 0, result
    await rid(lab, *machines, name=name, timeout_s=timeout_s)


async def rid(lab: Lab, *machines: OwnedMachine, name: str = "", timeout_s: float = PATIENCE_S) -> None:
    """Wait until nothing of meshd runs on hosts that were removed. `name` is what one machine was invited as."""
    names = {name or machine.name for machine in machines}

    async def gone() -> bool:
        there = [await machine.run("test", "-e", "/opt/meshd-host", check=False) for machine in machines]
        return not names & (await hosts(lab)).keys() and all(one.returncode for one in there)

    await lab.until(gone, f"{', '.join(sorted(names))} are evicted", timeout_s)


def said(result: Result) -> str:
    """What a script told its owner."""
    return result.stderr.decode().strip()


def same(before: dict[str, Entry], after: dict[str, Entry]) -> None:
    """The disk is as it was, but for `ALLOWED`."""
    found = {path: what for path, what in differences(before, after).items() if path not in ALLOWED}
    assert not found, "\n".join(f"{path}: {what}" for path, what in found.items())
