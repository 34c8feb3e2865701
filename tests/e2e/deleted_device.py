"""What the tests of deleted devices wait for and look at."""

from __future__ import annotations

import time
from collections.abc import Callable

from meshd.codes import ProblemCode
from tests.e2e.lab import Lab


async def told(lab: Lab, machine: str, began: float, figure: Callable[[str], None]) -> None:
    """Wait until the head tells of the deleted device."""

    async def look() -> bool:
        return ProblemCode.DEVICE_DELETED in await lab.problem_codes(machine)

    await lab.until(look, "the head tells of it")
    figure(f"the head told of it after {time.monotonic() - began:.1f} s")


async def device_events(lab: Lab, machine: str, after: int) -> list[str]:
    return [e["text"] for e in await lab.events(after) if e["machine"] == machine and e["kind"] == "device"]


async def completed(lab: Lab, job: str) -> None:
    assert (await lab.completed(job))["Restarts"] == "0"


async def nothing_wrong(lab: Lab, machine: str) -> None:
    async def heard() -> bool:
        return machine not in await lab.problems()

    await lab.until(heard, "nothing is wrong with it any more")
