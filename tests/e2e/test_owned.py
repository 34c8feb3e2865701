"""Owned machines: invited, used in one job with a rented one, away and back in the same slot, evicted without a trace.

A machine that no stand-in of a cloud knows, behind NAT.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests import documents
from tests.e2e.lab import WAIT_FOR_WORD, Lab
from tests.e2e.owned import invite_as, nodes_of, owned, rid, said, same
from tests.e2e.recipes import Person

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


async def test_a_machine_that_no_cloud_knows(owners: Lab, lab: Lab, figure: Callable[[str], None]) -> None:
    inviting, removing = documents.share(__file__, "docs/owned-machines.md")
    async with owned(lab, "tower", "attic") as (tower, attic):
        before = [await machine.manifest() for machine in (tower, attic)]
        script = await invite_as(lab, inviting, {"--name": "--usd-per-hour 0.1 --name"})
        began = time.monotonic()
        redeemed = await tower.redeem(script)
        assert redeemed.returncode == 0, said(redeemed)
        enrolled = time.monotonic() - began
        row = (await nodes_of(lab, "tower"))["tower"]
        figure(f"enrolled {enrolled:.0f} s, READY {time.monotonic() - began:.0f} s after the script began")
        assert row["provider"] == "static"
        slot = row["slot"]

        # its invitation is used up, there and on another machine, which stays as it was
        assert (await tower.redeem(script)).returncode != 0
        async with asyncio.TaskGroup() as group:
            second = group.create_task(attic.redeem(script))

            # one job on it and on a rented machine
            await lab.want(2)
            job = await lab.sbatch(WAIT_FOR_WORD, "--nodes=2", "--gpus=2")
            await lab.running(job)
            listed = (await lab.job(job))["NodeList"]
            assert slot in (await lab.head.run("scontrol", "show", "hostnames", listed)).text.split()
            assert (await lab.slots())[slot].reason == "", "what was said while it was awaited"
            await lab.head.run("scancel", job)
        assert second.result().returncode != 0
        same(before[1], await attic.manifest())

        # it reboots, and is a node in the same slot
        machine = row["machine"]
        booted = await tower.boot_id()
        await tower.run("systemctl", "reboot", check=False)

        async def again() -> bool:
            return await tower.boot_id() not in ("", booted)

        await lab.until(again, "tower has booted again")
        row = (await nodes_of(lab, "tower"))["tower"]
        assert row["slot"] == slot
        figure("the same machine after the reboot" if row["machine"] == machine else "another machine after the reboot")

        began = time.monotonic()
        await Person(lab, "root").block(removing)
        await rid(lab, tower)
        figure(f"evicted after {time.monotonic() - began:.0f} s")
        same(before[0], await tower.manifest())
        assert (await tower.run("uname", "-n")).text == "tower"
        assert "tower" not in await lab.devices()
