"""One cluster for all scenarios: the head's boot is the cost. Each scenario begins and ends with 0 GPUs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.cluster import Cluster, ClusterOptions
from tests.e2e.lab import QUICK, USER, Lab

CAN_RUN = os.geteuid() == 0 and shutil.which("systemd-nspawn") is not None


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def booted() -> AsyncIterator[Lab]:
    """The cluster, with a head on which meshd runs."""
    if not CAN_RUN:
        pytest.skip("machines need root and systemd-nspawn")
    options = ClusterOptions(
        sandbox_id=f"e2e{os.getpid() % 100000}", providers=("aws", "lambda"), timing=QUICK, key_mode="reusable"
    )  # fmt: skip
    began = time.monotonic()
    async with Cluster(options) as cluster:
        await cluster.bring_up_head()
        await cluster.head.run("useradd", "--create-home", USER)
        _figures.append(("the head", f"from nothing to a head with meshd: {time.monotonic() - began:.1f} s"))
        yield Lab(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def lab(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with 0 GPUs and no faults; what a failed scenario left is cleared away before the next one."""
    if not booted.clean:
        await booted.reset()
    yield booted
    await booted.reset()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a measured figure, which the summary shows."""

    def note(text: str) -> None:
        _figures.append((request.node.name, text))
        request.node.user_properties.append(("figure", text))

    return note


_figures: list[tuple[str, str]] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    if _figures:
        terminalreporter.section("e2e figures")
        for name, text in _figures:
            terminalreporter.write_line(f"{name}: {text}")
