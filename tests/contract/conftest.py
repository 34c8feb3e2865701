"""Speed: the stand-ins' tables of instance types are large and live for the whole run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def spare_the_collector() -> Iterator[None]:
    """Collect seldom: each full collection walks the SDK's and moto's tables, for a third of a second."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    yield
    gc.set_threshold(*before)
