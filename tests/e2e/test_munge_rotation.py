"""The munge key rotates while jobs run steps, users ask Slurm, and machines join: no job is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

STEPS = """\
until [ -e /tmp/end-$SLURM_JOB_ID ]; do
    begun=$(date +%s.%N)
    srun --ntasks=1 --overlap true; code=$?
    echo "$code $begun $(date +%s.%N)" >>/tmp/steps-$SLURM_JOB_ID
    sleep 0.5
done
echo done
"""
CALLS = """
until [ -e /tmp/end-calls ]; do
    begun=$(date +%s.%N)
    sinfo -h >/dev/null 2>&1; code=$?
    echo "$code $begun $(date +%s.%N)" >>/tmp/calls
    sleep 0.2
done
"""
NODES = 3
MORE = 3


async def key_of(lab: Lab, machine: str = "") -> str:
    """The digest of the key that munged uses on a machine, or on the head."""
    argv = ("sh", "-c", "sha256sum /etc/munge/munge.key | cut -c 1-16")
    return await lab.inside(machine, *argv) if machine else (await lab.head.run(*argv)).text


async def changed_at(lab: Lab, machine: str = "") -> float:
    """When the key was put in place on a machine, or on the head, while munged was away; seconds since the epoch."""
    argv = ("stat", "-c", "%.Z", "/etc/munge/munge.key")
    return float(await lab.inside(machine, *argv) if machine else (await lab.head.run(*argv)).text)


def failed(lines: str) -> list[list[str]]:
    """Of lines "exit code, begin, end", those that failed."""
    return [words for words in map(str.split, lines.splitlines()) if words[0] != "0"]


async def rotation(lab: Lab) -> Any:
    return await lab.answer("munge-rotation")


async def work_goes_on(lab: Lab, busy: dict[str, str]) -> None:
    """Wait until each job has ended more steps, and Slurm has answered more questions."""

    async def ended() -> list[int]:
        count = ("sh", "-c", "cat /tmp/steps-* /tmp/calls 2>/dev/null | wc -l")
        inside = [await lab.inside(machine, *count) for machine in busy.values()]
        return [int(lines) for lines in (*inside, (await lab.head.run(*count)).text)]

    begun = await ended()

    async def more() -> bool:
        return all(now >= then + MORE for now, then in zip(await ended(), begun, strict=True))

    await lab.until(more, f"{MORE} more steps of each job, and answers of Slurm")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def busy(booted: Lab) -> AsyncIterator[dict[str, str]]:
    """Each machine with a job that runs step after step; machine by job."""
    lab = booted
    await lab.begin(__name__, keep=True)
    await lab.have(NODES)
    machines = {row["slot"]: row["machine"] for row in (await lab.nodes()).values()}
    jobs = [await lab.sbatch(STEPS) for _ in range(NODES)]
    yield {job: machines[await lab.running(job)] for job in jobs}
    await lab.head.run("rm", "-f", "/tmp/calls", "/tmp/end-calls")


async def test_the_fleet_runs_on(booted: Lab, busy: dict[str, str], figure: Callable[[str], None]) -> None:
    lab, old = booted, await key_of(booted)
    preview = await lab.ask("rotate-key", "--munge", "--dry-run")
    assert {node["key"] for node in preview["nodes"]} == {old}
    assert (await key_of(lab)) == old
    calls = asyncio.create_task(lab.head.run("sh", "-c", CALLS, timeout_s=240))
    await work_goes_on(lab, busy)
    began = time.monotonic()
    done = await lab.ask("rotate-key", "--munge", "--yes", timeout_s=120)
    took_s = time.monotonic() - began
    await work_goes_on(lab, busy)
    await lab.head.run("touch", "/tmp/end-calls")
    await calls
    assert done["stage"] == "done", await lab.evidence()
    assert {node["state"] for node in done["nodes"]} == {"confirmed"}
    assert old != done["new"]
    assert {await key_of(lab, machine) for machine in busy.values()} == {await key_of(lab)} == {done["new"]}

    asked = (await lab.head.run("cat", "/tmp/calls")).text
    refused = failed(asked)
    steps = {job: await lab.inside(machine, "cat", f"/tmp/steps-{job}") for job, machine in busy.items()}
    lost = [words for text in steps.values() for words in failed(text)]
    waited_s = max(float(end) - float(begun) for _, begun, end in map(str.split, asked.splitlines()))
    count = sum(len(text.splitlines()) for text in steps.values())
    figure(
        f"rotated in {took_s:.1f} s over {NODES} nodes; munged away for {done['longest_away_ms']:.0f} ms at most, "
        f"{done['spread_ms']:.0f} ms from first to last; {len(refused)} of {len(asked.splitlines())} sinfo refused, "
        f"the longest took {waited_s:.2f} s; {len(lost)} of {count} steps failed"
    )
    # Only what began before the last munged was back may have been refused. On a busy host that takes longer.
    changed = [await changed_at(lab, machine) for machine in ("", *busy.values())]
    same_again = max(changed) + done["longest_away_ms"] / 1000
    for _, begun, _ in refused + lost:
        assert float(begun) < same_again, f"refused {float(begun) - same_again:.2f} s after all had one key"
    for job in busy:
        seen = await lab.job(job)
        assert (seen["JobState"], seen["Restarts"]) == ("RUNNING", "0")

    async def well() -> bool:
        return not await lab.problems()

    await lab.until(well, "nothing is wrong")
    assert await lab.srun(f"-N{NODES}", "--overlap", "--mem=1", "--gpus=0", "true") == ""


async def test_meshd_is_killed_at_the_moment_and_a_machine_joins_later(booted: Lab, busy: dict[str, str]) -> None:
    lab, old = booted, await key_of(booted)

    async def switching() -> bool:
        view = await lab.get("munge-rotation")
        if view and not view["active"]:  # none was begun yet, or a busy host has looked away during the whole of it
            await lab.ask("rotate-key", "--munge", "--yes", "--no-wait")
        return bool(view and view["stage"] == "switch")

    await lab.until(switching, "the moment is agreed on")
    await lab.kill_meshd()

    async def ended() -> Any:
        view = await lab.get("munge-rotation")
        return view if view and not view["active"] else None

    view = await lab.until(ended, "it has ended")
    assert view["stage"] == "done" and view["new"] != old
    assert {await key_of(lab, machine) for machine in busy.values()} == {await key_of(lab)} == {view["new"]}
    for job in busy:
        assert (await lab.job(job))["JobState"] == "RUNNING"
    # Without a restart of meshd, a machine that joins now gets the key of now.
    await lab.have(NODES + 1)
    (newcomer,) = {row["machine"] for row in (await lab.nodes()).values()} - set(busy.values())
    assert await key_of(lab, newcomer) == view["new"]


async def test_one_that_was_away_gets_the_key_when_it_returns(booted: Lab, busy: dict[str, str]) -> None:
    lab = booted
    job, machine = next(iter(busy.items()))
    await lab.head.run("scancel", job)
    slot = next(row["slot"] for row in (await lab.nodes()).values() if row["machine"] == machine)
    try:
        await lab.inside(machine, "systemctl", "stop", "meshd-node", "meshd-slurmd")
        await lab.head.run("scontrol", "update", f"nodename={slot}", "state=down", "reason=test")
        await lab.ask("rotate-key", "--munge", "--yes", "--no-wait")
        await lab.ask("rotate-key", "--munge", "--waive", machine)

        async def done() -> bool:
            return bool((await rotation(lab))["stage"] == "done")

        await lab.until(done, "it is done without the one that is away")
        old, new = await key_of(lab, machine), await key_of(lab)
        assert old != new
    finally:
        await lab.inside(machine, "systemctl", "start", "meshd-node")

    async def same() -> bool:
        return await key_of(lab, machine) == new

    await lab.until(same, "it has the key")


async def test_the_unit_is_off(booted: Lab, busy: dict[str, str]) -> None:
    lab, old = booted, await key_of(booted)
    await lab.head.run("systemctl", "stop", "meshd-munge.path")
    try:
        result = await lab.meshctl("rotate-key", "--munge", "--yes", timeout_s=120)
    finally:
        await lab.head.run("systemctl", "start", "meshd-munge.path")
    assert result.returncode == 1
    assert "systemctl enable --now meshd-munge.path" in result.stderr.decode()
    assert {await key_of(lab, machine) for machine in busy.values()} == {await key_of(lab)} == {old}
    again = await lab.ask("rotate-key", "--munge", "--yes", timeout_s=120)
    assert again["stage"] == "done", "with the cause mended it works"
