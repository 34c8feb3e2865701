"""A problem of the cluster arrives at a webhook, once, whatever restarts; and so does its end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.hook import TAKEN, hooked
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

RECEIVER = """\
min_severity = "error"
after_s = 0
group_s = 0
resolved_after_s = 5
"""


@pytest_asyncio.fixture(loop_scope="session")
async def told(lab: Lab) -> AsyncIterator[Lab]:
    """A receiver on the head, and meshd that tells it."""
    async with hooked(lab, "hook", RECEIVER):
        yield lab


async def taken(lab: Lab) -> list[Any]:
    """The states and codes of all messages that arrived."""
    lines = (await lab.head.run("cat", TAKEN, check=False)).text.splitlines()
    return [(p["state"], p["code"]) for line in lines for p in json.loads(line)["problems"]]


async def test_a_problem_and_its_end_arrive_and_a_restart_repeats_nothing(told: Lab) -> None:
    assert (await told.ask("notify", "test"))["rows"] == [{"receiver": "hook", "ok": True, "text": "HTTP 200: taken"}]
    await told.ask("freeze", "--reason", "work on the cloud")

    async def begun() -> bool:
        return ("begun", "frozen") in await taken(told)

    await told.until(begun, "the freeze is told")
    await told.restart_meshd()
    await told.answer("status")
    await told.ask("thaw")

    async def over() -> bool:
        return ("resolved", "frozen") in await taken(told)

    await told.until(over, "its end is told")
    assert [state for state, code in await taken(told) if code == "frozen"] == ["begun", "resolved"]
    kinds = [event["kind"] for event in await told.events(0)]
    assert "notify" in kinds
