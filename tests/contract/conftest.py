"""Speed: the stand-ins' tables of instance types are large and stay in memory for the whole run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def collect_seldom() -> Iterator[None]:
    """Collect garbage seldom: a full collection walks the tables of the SDK and moto for a third of a second."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    yield
    gc.set_threshold(*before)
