"""podman in a job, as docs/containers-in-jobs.md says: without root, on the node's own disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox import images
from tests import documents
from tests.e2e.lab import USER, Lab
from tests.e2e.recipes import Person, instead
from tests.e2e.workplace import workplace

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_job_recipes has containers of Slurm's own in each run
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

HOME = f"/home/{USER}"
PROGRAM = "sh -c 'id -un; id -u; pwd; cat ~/word; command -v sinfo || echo none; stat -c %F /dev/nvidia0; exit 5'"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def person(booted: Lab) -> AsyncIterator[Person]:
    async with workplace(booted, "podman", "trixie-podman") as someone:
        yield someone


async def test_a_job_runs_a_program_in_podman(person: Person, figure: Callable[[str], None]) -> None:
    lab = person.lab
    (block,) = documents.share(__file__, "docs/containers-in-jobs.md")
    shutil.copyfile(await images.ensure_oci_image("trixie"), lab.cluster.world.share / HOME.lstrip("/") / "python.tar")
    words = instead({"IMAGE PROGRAM": f"oci-archive:{HOME}/python.tar {PROGRAM}"})
    script = "\n".join(words(typed.command) for typed in block.typed())
    await lab.head.write(f"{HOME}/podman.sh", f"#!/bin/bash\n{script}\n", "0755")
    await lab.head.write(f"{HOME}/word", "of my home\n", "0644")
    uid = (await lab.head.run("id", "-u", USER)).text
    for what in ("with the image's unpacking", "again"):
        began = time.monotonic()
        ran = await lab.step("--gpus=1", f"{HOME}/podman.sh")
        figure(f"podman in a job {what}: {time.monotonic() - began:.1f} s")
        assert ran.returncode == 5, ran.stderr.decode()
        assert ran.text.splitlines() == [USER, uid, "/", "of my home", "none", "character special file"]
