"""After any history of faults and kills all is as wanted: nothing leaked, nothing doubled, no job killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.sim import live_through


@pytest.mark.parametrize("block", range(10))
async def test_every_history_ends_well(block: int, tmp_path: Path) -> None:
    for seed in range(block * 10, block * 10 + 10):
        await live_through(seed, tmp_path)


@pytest.mark.parametrize("seed", [267, 609, 1147])
async def test_a_history_that_once_went_wrong(seed: int, tmp_path: Path) -> None:
    """All three: slurmd had not stopped, somebody opened the node again, and its machine was ended under a job."""
    await live_through(seed, tmp_path)
