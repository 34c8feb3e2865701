"""What tests of the daemon share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.head_room import HeadRoom


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[HeadRoom]:
    made = HeadRoom(tmp_path)
    made.reconciler.tick()
    yield made
    await made.executor.aclose(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    made.journal.close()
