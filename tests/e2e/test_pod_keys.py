"""All keys rotate while two jobs run over two pods and a VM: neither they nor the connections of their steps notice."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.pods import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

STREAM = "i=0; until [ -e {word} ]; do echo $i; i=$((i + 1)); sleep 0.1; done; echo end"
"""A step that counts until its node has a file."""

STEPS = """\
until [ -e /tmp/end-$SLURM_JOB_ID ]; do
    begun=$(date +%s.%N)
    srun -N3 -n3 --overlap --gpus=0 true; code=$?
    echo "$code $begun" >>/tmp/steps-$SLURM_JOB_ID
    sleep 0.3
done
"""
"""A job that runs steps on all nodes, one after the other."""

MORE = 3
SECRETS = ("/etc/meshd-node/tailscale.key", "/etc/meshd-node/node.token", "/etc/munge/munge.key")


class Work:
    """A job that runs steps on all nodes, and a step that writes from all nodes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.word = f"/tmp/end-{time.monotonic_ns()}"

    async def begin(self) -> None:
        lab, where = self.fleet.lab, ("-w", self.fleet.all_nodes)
        self.job = await lab.sbatch(STEPS, "-N3", "--gpus=0", *where)
        await lab.running(self.job)
        self.first = (await lab.job(self.job))["BatchHost"]
        script = STREAM.format(word=self.word)
        self.stream = asyncio.create_task(lab.step(*where, "--label", "sh", "-c", script, timeout_s=300))
        await self.goes_on()

    async def steps(self) -> list[tuple[int, float]]:
        """Exit code and begin of each step that has ended."""
        text = await self.fleet.sh(self.first, f"cat /tmp/steps-{self.job} 2>/dev/null || true")
        return [(int(code), float(begun)) for code, begun in map(str.split, text.splitlines())]

    async def goes_on(self) -> None:
        """Wait until more steps have ended."""
        before = len(await self.steps())

        async def more() -> bool:
            return len(await self.steps()) >= before + MORE

        await self.fleet.lab.until(more, f"{MORE} more steps end")
        seen = await self.fleet.lab.job(self.job)
        assert (seen["JobState"], seen["Restarts"]) == ("RUNNING", "0")
        assert not self.stream.done(), self.stream.result()

    async def end(self) -> str:
        """What the step on all nodes has written."""
        await self.fleet.sh(self.first, f"touch /tmp/end-{self.job}")
        await self.fleet.finished(self.job)
        await self.fleet.on_all(f"touch {self.word}")
        result = await self.stream
        assert result.returncode == 0, result
        return result.text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def work(fleet: Fleet) -> AsyncIterator[Work]:
    begun = Work(fleet)
    await begun.begin()
    yield begun
    begun.stream.cancel()
    await asyncio.gather(begun.stream, return_exceptions=True)
    await fleet.lab.head.run("scancel", begun.job, check=False)


async def digests(fleet: Fleet, path: str) -> set[str]:
    """The different contents that a file has on the nodes."""
    return set((await fleet.on_all(f"sha256sum <{path}")).values())


async def confirmed(fleet: Fleet, words: tuple[str, ...]) -> Any:
    """Rotate, and wait until all nodes confirm; what meshctl tells in the end."""
    done = await fleet.lab.ask("rotate-key", *words, "--timeout", "120s", timeout_s=140)
    assert {node["slot"] for node in done["nodes"]} == set(fleet.slots)
    return done


async def test_the_auth_key(fleet: Fleet, work: Work, figure: Callable[[str], None]) -> None:
    """Each node logs in again; its connections stay."""
    lab, began = fleet.lab, time.monotonic()
    addresses = {slot: row["address"] for slot, row in (await lab.by_slot()).items()}
    before = await digests(fleet, SECRETS[0])
    done = await confirmed(fleet, ("--reauth",))
    figure(
        f"auth key, three logins: {time.monotonic() - began:.1f} s, {[row['gap_s'] for row in done['nodes']]} s each"
    )
    assert {row["state"] for row in done["nodes"]} == {"confirmed"}
    assert min(row["gap_s"] for row in done["nodes"]) > 0
    after = await digests(fleet, SECRETS[0])
    assert len(after) == 1 and not after & before
    assert {slot: row["address"] for slot, row in (await lab.by_slot()).items()} == addresses
    await work.goes_on()
    assert {code for code, _ in await work.steps()} == {0}


async def test_the_node_tokens(fleet: Fleet, work: Work) -> None:
    before = await digests(fleet, SECRETS[1])
    assert len(before) == 3
    done = await confirmed(fleet, ("--tokens", "--yes"))
    assert {row["state"] for row in done["nodes"]} == {"done"}
    after = await digests(fleet, SECRETS[1])
    assert len(after) == 3 and not after & before
    await work.goes_on()
    assert {code for code, _ in await work.steps()} == {0}


async def test_the_munge_key(fleet: Fleet, work: Work, figure: Callable[[str], None]) -> None:
    """A step fails only if it begins while not all have the new key yet."""
    before, began = await digests(fleet, SECRETS[2]), time.time()
    done = await confirmed(fleet, ("--munge", "--yes"))
    assert (done["stage"], {node["state"] for node in done["nodes"]}) == ("done", {"confirmed"})
    after = await digests(fleet, SECRETS[2])
    assert len(after) == 1 and not after & before
    changed = max(float(at) for at in (await fleet.on_all(f"stat -c %.Z {SECRETS[2]}")).values())
    await work.goes_on()
    steps = await work.steps()
    failed = [begun for code, begun in steps if code != 0]
    figure(f"munge key: {changed - began:.1f} s; {len(failed)} of {len(steps)} steps failed")
    same_again = changed + done["longest_away_ms"] / 1000
    assert all(begun < same_again for begun in failed)


async def test_no_connection_of_the_step_broke(fleet: Fleet, work: Work) -> None:
    written = await work.end()
    for rank in range(3):
        said = re.findall(rf"^{rank}: (\w+)$", written, re.MULTILINE)
        assert said == [*map(str, range(len(said) - 1)), "end"]
