"""What all tests share."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys

import pytest
import structlog

# Tests look at what happened, not at log lines; the tests of logging set it up themselves.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

STAGES = ("unit", "property", "contract", "integration", "e2e")
"""Folders in the order in which they run: what is quick to fail comes first."""

NEED_ROOT = ("integration", "e2e")
"""Markers of tests that need root, machine images and the sandbox's programs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much is tried beyond what each run tries."""
    parser.addoption(
        "--soak-seeds", type=int, default=2, help="histories of the engine over five clouds (default: %(default)s)"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the stages in order, and see that what the selected tests need is there."""
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


# Started in the background of a shell, SIGINT is ignored, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
