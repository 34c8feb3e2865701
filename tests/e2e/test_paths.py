"""A pool that demands direct paths: slurmd waits for one, and a machine that gets none is given back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from meshd.codes import EventKind
from meshd.model.machine import FailureCause
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

RELAYED = """\
nft -f - <<END
table inet relayed {
chain input {
type filter hook input priority 0
udp sport 41641 udp dport 41641 drop
}
}
END
"""
DIRECT = "nft delete table inet relayed"
SOON_S, LATE_S = 4.0, 300.0


@pytest_asyncio.fixture(loop_scope="session")
async def relayed(lab: Lab) -> AsyncIterator[Callable[[float], Any]]:
    """The head takes no packet of WireGuard, so all paths are relayed; the pool demands direct ones."""

    async def demand(test_timeout_s: float) -> None:
        text = lab.settings_with(test_timeout_s=test_timeout_s)
        assert await lab.write_settings(text.replace("[pools.h100]\n", '[pools.h100]\npath = "direct"\n')) == 0

    await lab.head.shell(RELAYED)
    yield demand
    await lab.head.shell(f"{DIRECT} || true")


async def test_slurmd_waits_for_a_direct_path(
    lab: Lab, relayed: Callable[[float], Any], figure: Callable[[str], None]
) -> None:
    await relayed(SOON_S)
    before = await lab.last_event()
    await lab.want(1)

    async def given_up() -> dict[str, Any] | None:
        events = await lab.events(before)
        return next((e for e in events if e["fields"].get("cause") == FailureCause.PATH), None)

    event = await lab.until(given_up, "a machine with a relayed path is given back")
    assert "41641" in event["text"]
    started = {e["machine"] for e in await lab.events(before) if e["kind"] == EventKind.START_SLURMD}
    assert event["machine"] not in started, "no job could begin on it"

    await relayed(LATE_S)
    await lab.want(1)

    async def waits() -> dict[str, Any] | None:
        rows = (await lab.by_slot()).values()
        return next((row for row in rows if row["phase"] == "testing" and row["head_path"]), None)

    row = await lab.until(waits, "a machine waits for its path")
    assert (row["head_path"]["kind"], row["head_path"]["throughput_estimate"]) == ("derp", "low")
    await lab.head.shell(DIRECT)
    (row,) = (await lab.ready(1)).values()
    assert row["head_path"]["kind"] == "direct"
    figure(f"{row['slot']} is READY with a path of {row['head_path']['rtt_ms']} ms")
    metrics = await lab.metrics()
    assert f'meshd_node_path_direct{{accepts="direct",pool="h100",slot="{row["slot"]}"}} 1.0' in metrics
