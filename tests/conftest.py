"""What all tests share."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import tiers, workers

# Tests look at what happened, not at log lines; the tests of logging set it up themselves.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# A run judges the change and nothing else: the same examples each time, and no verdict on how busy the machine is.
# `--hypothesis-profile=search` looks for new ones, and prints what repeats a failure.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("same", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT)
settings.register_profile("nightly", _PATIENT, max_examples=tiers.EXAMPLES)
settings.load_profile("same")

STAGES = ("unit", "security", "property", "contract", "e2e", "integration")
"""Folders in the order in which they run: quick ones first; but the long files of e2e before those that fill gaps."""

MEMORY_BYTES = 1 << 30
"""So much must be free in a folder in memory; the tests take a tenth of it."""

NIGHTLY_CONTRACT_SEEDS = 20
"""Histories of random faults for each adapter."""

NEED_ROOT = ("integration", "e2e")
"""Markers of tests that need root, machine images and the sandbox's programs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much is tried beyond what each run tries."""
    parser.addoption("--nightly", action="store_true", help="searches in their long form (tests/tiers.py): hours")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier before any module of tests is read."""
    config.pluginmanager.register(workers.Workers())
    if config.getoption("nightly"):
        tiers.begin_nightly()
        config.option.contract_seeds = max(config.option.contract_seeds, NIGHTLY_CONTRACT_SEEDS)
        settings.load_profile("nightly")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the stages in order, and see that what the selected tests need is there."""
    if not config.getoption("nightly"):
        late = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        if late:
            config.hook.pytest_deselected(items=late)
    items.sort(key=_stage)
    deep = sorted({name for item in items for name in NEED_ROOT if item.get_closest_marker(name)})
    if not deep or config.option.collectonly:
        return
    if os.geteuid() != 0:
        raise pytest.UsageError(
            f"the {' and '.join(deep)} tests boot machines and need root: use sudo, or leave them out with "
            "-m 'not integration and not e2e'"
        )
    # Minutes in a new cache, and seconds not at all afterwards; not on any test's time.
    if subprocess.run([sys.executable, "-m", "deploy.sandbox.prepare"], cwd=config.rootpath, check=False).returncode:
        raise pytest.UsageError("the machine images could not be prepared, see above")


def _stage(item: pytest.Item) -> int:
    folders = item.path.parts
    return next((index for index, name in enumerate(STAGES) if name in folders), len(STAGES))


def _folder_in_memory() -> Path | None:
    """Where temporary files need no disk; None where no such place has room, or lets programs run."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        return None
    told = os.statvfs(shm)
    runs, free = not told.f_flag & os.ST_NOEXEC, told.f_bavail * told.f_frsize
    return shm if runs and free >= MEMORY_BYTES else None


# The journal syncs each write to its disk, which is what most of its tests would wait for: pytest's tmp_path is memory.
if (_folder := _folder_in_memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_folder))

# Started in the background of a shell, SIGINT is ignored, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
