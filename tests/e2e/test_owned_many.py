"""Ten machines invited at once, from one file: hosts, nodes, one job over all of them, and evicted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from tests.e2e.lab import Lab
from tests.e2e.owned import evicted, nodes_of, owned, said

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_owned.py has the life of one
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1500),
]

NAMES = tuple(f"desk{number:02d}" for number in range(10))
FOLDER = PurePosixPath("/root/invitations")
ALL_S = 600.0
"""For all of them, on a small computer."""


async def test_ten_at_once(owners: Lab, lab: Lab, figure: Callable[[str], None]) -> None:
    try:
        async with owned(lab, *NAMES) as machines:
            began = time.monotonic()

            def stage(what: str) -> None:
                nonlocal began
                figure(f"{len(NAMES)} machines {what}: {time.monotonic() - began:.0f} s")
                began = time.monotonic()

            await lab.head.write("/root/machines.txt", "".join(f"{name}\n" for name in NAMES))
            words = ("--pool", "h100", "--file", "/root/machines.txt", "--output", str(FOLDER))
            invited = await lab.meshctl("invite", *words)
            assert invited.returncode == 0, invited
            stage("invited")
            scripts = [(await lab.head.run("cat", str(FOLDER / f"{name}.sh"))).stdout.decode() for name in NAMES]
            redeemed = await asyncio.gather(
                *(machine.redeem(script, ALL_S) for machine, script in zip(machines, scripts, strict=True))
            )
            assert {result.returncode for result in redeemed} == {0}, [said(result) for result in redeemed]
            stage("enrolled")
            rows = await nodes_of(lab, *NAMES, timeout_s=ALL_S)
            stage("READY")
            assert len({row["slot"] for row in rows.values()}) == len(NAMES)
            count = str(len(NAMES))
            told = await lab.srun("-N", count, f"--gpus={count}", "--ntasks-per-node=1", "hostname")
            stage("one job over all")
            assert sorted(told.split()) == sorted(row["slot"] for row in rows.values())
            assert not lab.alive("aws"), "nothing was rented"
            await evicted(lab, *machines, timeout_s=ALL_S)
            stage("evicted")
            assert await lab.devices() == set()
    finally:
        await lab.head.run("rm", "-rf", "/root/machines.txt", str(FOLDER))
