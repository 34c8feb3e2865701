"""The clock of the head's meshd is set by an hour, while machines boot and while they run a job: nothing is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.sandbox.clouds.server import BILLING
from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/property sets the clock in each run
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

HOUR_S = 3600
WITHIN_S = 20.0
"""Between an order and its answer, on a machine that is busy with other things. An hour would be seen."""
QUEUE = "scale_from_queue = true\nidle_timeout_s = 5"
PLACE = "/usr/local/lib/own-clock"
DROP_IN = "/run/systemd/system/meshd.service.d/own-clock.conf"
SETTING = f"""\
[Service]
Environment=LD_PRELOAD={PLACE}/libfaketime.so.1 FAKETIME_TIMESTAMP_FILE={PLACE}/offset FAKETIME_NO_CACHE=1
Environment=FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
"""
FAULTS = {"failure", "unclear", "orphan", "adopted", "force", "unfit"}

SetClock = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def own_clock(lab: Lab) -> AsyncIterator[SetClock]:
    """meshd with a time of day of its own, and what sets it: how far it is ahead of the true time, in seconds."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")

    async def set_clock(ahead_s: int) -> None:
        event = await lab.last_event()
        await lab.head.shell(f"echo {ahead_s:+d} >{PLACE}/new; mv {PLACE}/new {PLACE}/offset")

        async def noticed() -> bool:
            return any(one["kind"] == "clock" for one in await lab.events(event))

        async def looked() -> bool:
            """It has read its cloud and Slurm since."""
            ages = {one["name"]: one["age_s"] for one in (await lab.status())["sources"]}
            passed_s = time.monotonic() - began
            return all(ages[name] is not None and 0 <= ages[name] < passed_s for name in ("slurm", "provider:aws"))

        await lab.until(noticed, f"meshd sees that its clock was set to {ahead_s:+d} s")
        began = time.monotonic()
        await lab.until(looked, "meshd has looked at all anew")

    await lab.head.run("mkdir", "-p", PLACE)
    await lab.head.run(
        "sh", "-ec", f"cat >{PLACE}/libfaketime.so.1; chmod 755 {PLACE}/*; echo +0 >{PLACE}/offset",
        stdin=library.read_bytes(),
    )  # fmt: skip
    try:
        await lab.head.write(DROP_IN, SETTING)
        await lab.head.run("systemctl", "daemon-reload")
        await lab.restart_meshd()
        yield set_clock
    finally:
        await lab.head.run("rm", "-rf", DROP_IN, PLACE)
        await lab.head.run("systemctl", "daemon-reload")
        await lab.restart_meshd()


@pytest.mark.parametrize("hour_s", [HOUR_S, -HOUR_S])
async def test_an_hour_while_machines_boot_and_while_they_work(
    booted: Lab, hour_s: int, figure: Callable[[str], None]
) -> None:
    async with booted.enabled("aws", pool=QUEUE) as lab, own_clock(lab) as set_clock:
        await lab.begin(f"clock {hour_s}")
        ever, event = len(lab.ledger()), await lab.last_event()
        since = datetime.now(UTC) - timedelta(seconds=2 * HOUR_S)  # what was booked in the hour before counts too
        job = await lab.sbatch(WAIT_FOR_WORD, "-N2", "--gpus-per-node=1", "--gpus=2")

        async def rented() -> bool:
            return len(lab.alive()) == 2

        await lab.until(rented, "two machines are rented")
        await set_clock(hour_s)  # machines whose clock is another one may not join
        await set_clock(0)
        await lab.running(job)
        machines = {one.token for one in lab.alive()}
        await set_clock(hour_s)
        job_in_its_hour = await lab.job(job)
        await set_clock(0)

        assert {one.token for one in lab.alive()} == machines == set(await lab.nodes())
        assert (job_in_its_hour["JobState"], (await lab.job(job))["JobState"]) == ("RUNNING", "RUNNING")
        batch_host = (await lab.by_slot())[(await lab.job(job))["BatchHost"]]["machine"]
        await lab.inside(batch_host, "touch", f"/tmp/end-{job}")
        assert (await lab.completed(job))["Restarts"] == "0"
        ended = datetime.now(UTC)
        await lab.nothing_left()

        born = lab.ledger()[ever:]
        assert {one.token for one in born} == machines
        assert len(born) == 2
        assert all(one.end_asked_at and one.end_asked_at >= ended for one in born), born
        events = await lab.events(event)
        assert not {one["kind"] for one in events} & FAULTS, events
        rows = (await lab.ask("cost", "--by", "machine", "--since", f"{since:%Y-%m-%dT%H:%M:%S}"))["rows"]
        ours = {row["key"]: row["usd"] for row in rows if row["key"] in machines}
        billed = {one.token: one.billed_usd(datetime.now(UTC), BILLING["aws"]) for one in born}
        figure(f"clock {hour_s:+d} s: {ours}, billed {billed}")
        assert ours == pytest.approx(billed, abs=born[0].usd_per_hour * WITHIN_S / 3600)
