"""After any history of faults and kills a rotation is done or taken back, and no key ends under a node's feet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.rotation_sim import live_through
from tests.tiers import bounded


@pytest.mark.parametrize("batch", range(bounded(3, 200)))
async def test_every_history_ends_well(batch: int, tmp_path: Path) -> None:
    for seed in range(batch * 10, batch * 10 + 10):
        await live_through(seed, tmp_path / str(seed))
