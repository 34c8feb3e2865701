"""An owned machine that sleeps: power saving wakes it for a job and puts it to sleep; and one whose lid was closed."""

from __future__ import annotations

import pytest

from meshd.daemon.hosts.wake import magic_packet
from tests import documents
from tests.e2e.lab import WAIT_FOR_WORD, Lab
from tests.e2e.owned import evicted, host_is, hosts, invite, invite_as, nodes_of, owned, said, same

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/daemon/hosts and test_owned.py prove the parts
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

POOL = "idle_timeout_s = 5"
WOKEN = "/var/lib/meshd/woken"
ASLEEP = "/run/asleep"
PACKET = "/run/magic-packet"
LISTEN = f"""\
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", 9))
open({PACKET!r}, "wb").write(link.recv(200))
"""
"""What a network card does that is switched on for it."""
UNMISSED_S = 330.0
"""Slurm pings a node each third of SlurmdTimeout, and passes over one that has just spoken; then its messages wait."""
MAC = "3c:ec:ef:00:12:34"


async def test_a_job_wakes_a_host_and_its_idle_time_puts_it_to_sleep(owners: Lab, lab: Lab) -> None:
    (inviting,) = documents.share(__file__, "docs/owned-machines.md")
    words = {
        "--sleep-command": f"--wake-command 'touch {WOKEN}' --sleep-command",
        "systemctl suspend": f"touch {ASLEEP}",
    }
    async with owned(lab, "attic") as (attic,):
        try:
            redeemed = await attic.redeem(await invite_as(lab, inviting, words))
            assert redeemed.returncode == 0, said(redeemed)

            async def on_head() -> bool:
                found = await lab.head.run("sh", "-c", f"test -e {WOKEN} && test -s {PACKET}", check=False)
                return found.returncode == 0

            async def on_attic() -> bool:
                return (await attic.run("test", "-e", ASLEEP, check=False)).returncode == 0

            slot = (await host_is(lab, "attic", "free"))["slot"]  # it has come, and nobody needs it
            attic.pause()
            await host_is(lab, "attic", "asleep")
            await lab.head.run("systemd-run", "--quiet", "--unit=listens", "python3", "-c", LISTEN)
            job = await lab.sbatch("#!/bin/sh\nhostname\n", "-w", slot)
            await lab.until(on_head, "the head has sent the packet, and run the wake command")
            assert (await hosts(lab))["attic"]["state"] == "waking"
            assert (await lab.head.run("cat", PACKET)).stdout == magic_packet(MAC)
            attic.resume()
            assert (await lab.completed(job))["NodeList"] == slot
            assert [(row["provider"], row["slot"]) for row in (await lab.nodes()).values()] == [("static", slot)]
            assert not lab.alive("aws"), "nothing was rented"
            await lab.until(on_attic, "it is told to sleep when it is idle")
            assert {row["phase"] for row in (await lab.nodes()).values()} <= {"terminating"}
            attic.pause()
            await host_is(lab, "attic", "asleep")
            assert (await lab.meshctl("remove", "--force", "--yes", "attic")).returncode == 0

            async def forgotten() -> bool:
                return not await hosts(lab)

            await lab.until(forgotten, "who is away is not waited for")
        finally:
            await lab.head.run("systemctl", "stop", "listens", check=False)
            await lab.head.run("rm", "-f", WOKEN, PACKET)


async def test_a_lid_that_was_closed(owners: Lab, lab: Lab) -> None:
    """One job on it and a rented machine. Its slot waits for it, and the job of the other node knows nothing of it."""
    async with owned(lab, "laptop") as (laptop,):
        before = await laptop.manifest()
        redeemed = await laptop.redeem(await invite(lab, "laptop"))
        assert redeemed.returncode == 0, said(redeemed)
        row = (await nodes_of(lab, "laptop"))["laptop"]
        slot, machine = row["slot"], row["machine"]

        async def reason() -> str:
            return (await lab.slots())[slot].reason

        assert await reason() == "", "what was said while it was awaited"
        rented = "h100-2" if slot == "h100-1" else "h100-1"
        both = await lab.srun("-w", f"{slot},{rented}", "--gpus=2", "--ntasks-per-node=1", "hostname")
        assert sorted(both.split()) == sorted([slot, rented])
        assert {row["provider"] for row in (await lab.nodes()).values()} == {"static", "aws"}
        job = await lab.sbatch(WAIT_FOR_WORD, "-w", rented)
        await lab.running(job)
        laptop.pause()
        await host_is(lab, "laptop", "away")

        async def ended() -> bool:
            return machine not in await lab.nodes()

        async def closed() -> bool:
            return "laptop is away since" in await reason()

        await lab.until(ended, "the machine that it was is gone", UNMISSED_S)
        await lab.until(closed, "its slot says why it is closed")
        laptop.resume()
        row = (await nodes_of(lab, "laptop"))["laptop"]
        assert (row["slot"], row["machine"] != machine) == (slot, True)
        assert await reason() == ""
        told = await lab.job(job)
        assert (told["JobState"], told["NodeList"], told["Restarts"]) == ("RUNNING", rented, "0")
        assert (await lab.srun("-w", slot, "hostname")).strip() == slot
        await lab.head.run("scancel", job)
        await evicted(lab, laptop)
        same(before, await laptop.manifest())
