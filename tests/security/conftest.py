"""The head of the security tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.security.attacker import Head, head_at


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    """A head that serves its node API on loopback."""
    async with head_at(tmp_path / "head") as one:
        yield one
