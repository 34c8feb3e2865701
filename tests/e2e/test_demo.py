"""deploy/demo, typed on this machine as README.md and docs/sandbox.md say. Nothing is left of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.sandbox import cache
from deploy.sandbox.demo import checks
from deploy.sandbox.presence import STATE_ROOT
from deploy.sandbox.processes import PidFolder
from tests import documents
from tests.documents import Block
from tests.e2e.recipes import SUBMITTED
from tests.here import Here

DEMO = "deploy/demo"
DEMO_S = 900.0
"""Many times what one takes on a quiet machine whose images are made."""
SHARES = re.compile(r"(\d+) of (\w+)")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A sandbox's name; whatever is there of it in the end is removed, but the logs of one that failed."""
    own = f"demo{os.getpid() % 100000}"
    yield own
    argv = [documents.ROOT / DEMO, "--id", own, "down"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_of(own) == []
    if not request.session.testsfailed:
        shutil.rmtree(cache.cache_root() / "logs" / f"demo-{own}", ignore_errors=True)


def left_of(name: str) -> list[str]:
    """What this machine has of a sandbox: processes, mounts, network namespaces, files."""
    found = checks.traces(name, PidFolder(STATE_ROOT / name / "pids").recorded())
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    found += [str(path) for path in Path("/run/netns").glob(f"*{name}*")]
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = words.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if re.search(rf"\b(meshd-)?{name}\b", line):
            found.append(f"process {words.parent.name}: {line}")
    return found


def here(tmp_path: Path, name: str, *options: str) -> Here:
    """Somebody who types, and means this sandbox."""
    words = {DEMO: " ".join([DEMO, "--id", name, *options])}
    return Here(tmp_path, words=words, timeout_s=DEMO_S)


def check_run(output: str, shares: dict[str, int]) -> None:
    """It ran a job on all GPUs, in each cloud on its share, and its last tables tell of as many machines."""
    gpus = sum(shares.values())
    assert len(checks.gpus_listed(output)) == gpus
    (told,) = re.findall(rf"{gpus} different GPUs on {gpus} nodes: (.+)", output)
    assert {cloud: int(nodes) for nodes, cloud in SHARES.findall(told)} == shares
    assert re.search(rf"machines rented +{gpus}\b", output)
    cloud, own = (float(usd) for usd in re.findall(r"would have cost, by [^$]+\$([\d.]+)", output))
    assert own == pytest.approx(cloud, rel=0.1), "the ledger has what the clouds bill"


def type_readme(here: Here, name: str, gpus: int, figure: Callable[[str], None]) -> None:
    (block,) = documents.share(__file__, "README.md")
    began = time.monotonic()
    (output,) = here.block(block)
    figure(f"{gpus} GPUs: {time.monotonic() - began:.1f} s")
    check_run(output, {"aws": gpus})
    assert left_of(name) == []


def test_the_demonstration(tmp_path: Path, name: str, figure: Callable[[str], None]) -> None:
    """With two machines instead of eight."""
    type_readme(here(tmp_path, name, "--gpus", "2"), name, 2, figure)


@pytest.mark.nightly
def test_the_demonstration_as_it_stands(tmp_path: Path, name: str, figure: Callable[[str], None]) -> None:
    type_readme(here(tmp_path, name), name, 8, figure)


def sandbox_page() -> tuple[Block, Block, Block, Block]:
    """Its blocks: several clouds, looking around, an account, a job."""
    clouds, around, account, job = documents.share(__file__, "docs/sandbox.md")
    return clouds, around, account, job


@pytest.mark.nightly
def test_other_clouds(tmp_path: Path, name: str) -> None:
    block, *_ = sandbox_page()
    google, all_clouds = here(tmp_path, name).block(block)
    check_run(google, {"gce": 8})
    check_run(all_clouds, dict.fromkeys(("aws", "gce", "runpod", "lambda", "paperspace"), 2))
    assert left_of(name) == []


@pytest.mark.nightly
def test_looking_around(tmp_path: Path, name: str) -> None:
    """A demonstration that stays, and then one with all that the recipes need."""
    _, around, account, job = sandbox_page()
    person = here(tmp_path, name)

    def on_head(*words: str) -> str:
        argv = [documents.ROOT / DEMO, "--id", name, "shell", "head", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout

    def machines() -> dict[str, str]:
        rows = json.loads(on_head("meshctl", "nodes", "-o", "json"))["nodes"]
        return {row["machine"]: row["phase"] for row in rows}

    keep, shell, node_shell, scale, down, keep_torch = around.typed()
    person.type(around, keep)
    assert list(machines().values()) == ["ready"] * 8
    there = left_of(name)
    for kind in ("process ", "mount ", "/run/netns/"):
        assert any(trace.startswith(kind) for trace in there), f"what is there is not seen: {kind}"
    assert person.type(around, shell, "hostname; meshctl status >/dev/null && echo well\n").split() == ["head", "well"]
    one = next(iter(machines()))
    (shown,) = re.findall(r"shell (lab-\S+)", node_shell.command)
    person.words = {**person.words, shown: one}
    assert "GPU 0:" in person.type(around, node_shell, "nvidia-smi -L\n")
    person.type(around, scale)
    assert list(machines().values()) == ["ready"] * 4
    person.type(around, down)
    assert left_of(name) == []

    check_run(person.type(around, keep_torch), {"aws": 2})
    add, become = account.typed()
    person.type(account, add)
    assert person.type(account, become, "id -un; pwd\n").split() == ["student", "/home/student"]
    to_none, submit, status = job.typed()
    person.type(job, to_none)
    assert machines() == {}
    (number,) = SUBMITTED.findall(person.type(job, submit))
    assert person.type(job, status)
    end = time.monotonic() + DEMO_S
    while "JobState=COMPLETED" not in (told := on_head("scontrol", "show", "job", number)):
        assert time.monotonic() < end and not re.search("JobState=(FAILED|CANCELLED|NODE_FAIL|TIMEOUT)", told), told
        time.sleep(1.0)
    assert len(machines()) == 2
