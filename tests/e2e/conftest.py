"""One cluster for all scenarios of a process. Each scenario first clears away what the one before has left."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.images import HEAD_MLFLOW
from meshd.store.state_copy import unlisted
from tests.e2e.lab import AT_ONCE, QUICK, SLURM, USER, Lab
from tests.e2e.owned import taking_hosts
from tests.e2e.pods import POD_CLOUD, VM_CLOUD, Fleet, brought_up

CAN_RUN = os.geteuid() == 0 and shutil.which("systemd-nspawn") is not None


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def booted(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """The cluster, with a head on which meshd runs."""
    if not CAN_RUN:
        pytest.skip("machines need root and systemd-nspawn")
    options = ClusterOptions(
        sandbox_id=f"e2e{os.getpid() % 100000}", providers=("aws", "lambda"), timing=QUICK, key_mode="reusable",
        boot_s=0.2, end_s=0.2, slurm=SLURM, slurm_settings=AT_ONCE, head_image=HEAD_MLFLOW,
    )  # fmt: skip
    async with Cluster(options) as cluster:
        await cluster.bring_up_head()
        await cluster.head.run("useradd", "--create-home", USER)
        lab = Lab(cluster)
        yield lab
        # After Ctrl-C a worker of pytest-xdist has 10 s to end: all of the cluster goes, as it is.
        if request.session.exitstatus != pytest.ExitCode.INTERRUPTED:
            await lab.reset()
            left = unlisted(await cluster.head.root() / "var/lib/meshd")
            assert not left, f"name them in meshd/store/state_copy.py: {left}"


@pytest_asyncio.fixture(loop_scope="session")
async def lab(booted: Lab, request: pytest.FixtureRequest) -> Lab:
    """The cluster with no jobs and no faults, and with 0 GPUs unless the test takes `any_machines`."""
    await booted.begin(request.node.name, keep=request.node.get_closest_marker("any_machines") is not None)
    return booted


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["by_queue", "by_hand"])
async def form(booted: Lab, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Which form the pool has: Slurm's queue drives it, as elsewhere, or people alone do."""
    if request.param == "by_hand":
        async with booted.driven_by_hand():
            yield "by_hand"
    else:
        yield "by_queue"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(booted: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    """Two pods and a VM for all tests of a module; they boot from the image that its `IMAGE` names."""
    async with booted.enabled(POD_CLOUD, VM_CLOUD) as lab:
        yield await brought_up(lab, request.module.__name__, getattr(request.module, "IMAGE", "trixie"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def owners(booted: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """The cluster takes owned machines. `SUITE` of a module names their Debian, `POOL` more lines of their pool."""
    module = request.module
    async with taking_hosts(booted, getattr(module, "SUITE", "trixie"), getattr(module, "POOL", "")) as lab:
        yield lab


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a measured figure, which the summary shows."""

    def note(text: str) -> None:
        request.node.user_properties.append(("figure", text))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured, in whatever process."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    figures = [
        (report.nodeid, text)
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if figures:
        terminalreporter.section("e2e figures")
        for test, text in figures:
            terminalreporter.write_line(f"{test.rpartition('::')[2]}: {text}")
