"""pyxis on the head: nodes that run get its line once they have what it needs, and say so where they lack it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.sandbox import proc
from tests import documents
from tests.e2e.lab import Lab
from tests.e2e.pods import PROGRAMS
from tests.e2e.recipes import Person

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/node/test_node_containers.py has the order on a node
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),
]

LIBRARY = "/usr/lib/slurm/spank_pyxis.so"
LINE = "/etc/slurm/plugstack.conf.d/pyxis.conf"
ON_NODES = "/etc/slurm/plugstack.conf.d/meshd-pyxis.conf"
PUT = f"mkdir -p {Path(LIBRARY).parent} && umask 022 && cat >{LIBRARY}"
ENROOT = "umask 022 && printf '#!/bin/sh\\n' >/usr/bin/enroot && chmod 755 /usr/bin/enroot"
IMAGE = "pytorch/pytorch"


@pytest_asyncio.fixture(loop_scope="session")
async def library(lab: Lab, tmp_path: Path) -> AsyncIterator[bytes]:
    """A plugin that Slurm loads. The head has it meanwhile, and may name it."""
    major, minor, micro = (await lab.head.run("srun", "--version")).text.split()[1].split(".")
    version = (int(major) << 16) | (int(minor) << 8) | int(micro)
    argv = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-DVERSION={version}"]
    await proc.run([*argv, "-o", tmp_path / "plugin.so", PROGRAMS / "spank_pyxis.c"], timeout_s=60)
    made = (tmp_path / "plugin.so").read_bytes()
    await lab.head.run("sh", "-ec", PUT, stdin=made)
    try:
        yield made
    finally:
        await lab.head.run("rm", "-f", LINE, LIBRARY)


async def test_a_line_of_the_heads_reaches_nodes_that_run(lab: Lab, library: bytes) -> None:
    (block,) = documents.share(__file__, "docs/containers-in-jobs.md")
    await lab.have(1)
    ((slot, row),) = (await lab.by_slot()).items()
    machine = row["machine"]
    await Person(lab, "root").block(block)

    async def lacks() -> bool:
        return LIBRARY in await lab.problems()

    await lab.until(lacks, "meshctl status says what is missing")
    assert (await lab.slots())[slot].states == {"IDLE"}, "it is not drained for that"
    await lab.inside(machine, "sh", "-ec", PUT, stdin=library)
    await lab.inside(machine, "sh", "-ec", ENROOT)

    async def there() -> bool:
        return LIBRARY in await lab.inside(machine, "cat", ON_NODES, check=False) and not await lab.problems()

    await lab.until(there, "the node has the line")
    assert await lab.srun(f"--container-image={IMAGE}", "printenv", "PYXIS_IMAGE") == IMAGE
    await lab.head.run("rm", LINE)

    async def gone() -> bool:
        return await lab.inside(machine, "cat", ON_NODES, check=False) == ""

    await lab.until(gone, "without the head's line the node has none")
    assert (await lab.step("printenv", "PYXIS_IMAGE")).returncode == 1
