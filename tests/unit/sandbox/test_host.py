"""How the sandbox deals with its host: processes, control groups, Debian's mirrors, what the head needs of PyPI."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.sandbox import cgroup, debian, images, proc, progress
from deploy.sandbox.processes import PidFolder, ProcessId, children, program_of
from deploy.sandbox.world import World


async def test_a_program_that_takes_too_long_is_killed_with_its_children() -> None:
    script = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read(); input()"
    )
    with pytest.raises(proc.CommandError) as caught:
        await proc.run([sys.executable, "-c", script.replace("input()", "import time; time.sleep(60)")], timeout_s=0.5)
    assert caught.value.returncode is None


async def test_a_failure_carries_what_the_program_said() -> None:
    with pytest.raises(proc.CommandError, match="no such thing") as caught:
        await proc.run(["sh", "-c", "echo no such thing >&2; exit 3"], timeout_s=10)
    assert caught.value.returncode == 3
    assert (await proc.run(["sh", "-c", "cat; exit 3"], timeout_s=10, stdin=b"in", check=False)).text == "in"


async def test_a_long_build_writes_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(proc.CommandError, match="second line"):
        await proc.run(["sh", "-c", "echo first line; echo second line >&2; exit 1"], timeout_s=10, log=log)
    assert progress.last_line(log) == "second line"


async def test_a_step_says_how_long_it_took() -> None:
    said: list[str] = []
    async with progress.step("thing", speak=said.append):
        await asyncio.sleep(0)
    assert said[0] == "thing ..."
    assert re.fullmatch(r"thing: done in \d+\.\d s", said[1])


def test_a_recorded_process_is_told_from_another_with_its_pid(tmp_path: Path) -> None:
    folder = PidFolder(tmp_path / "pids")
    with subprocess.Popen(["sleep", "60"]) as process:
        folder.record("sleeper", process.pid)
        (recorded,) = folder.recorded()
        assert recorded.alive()
        assert process.pid in children(os.getpid())
        assert program_of(process.pid) in {"sleep", "python3", "python"}
        ProcessId(recorded.pid, recorded.started_ticks + 1).kill()
        assert process.poll() is None
        recorded.kill()
        process.wait(10)
    assert not recorded.alive()
    folder.forget("sleeper")
    assert folder.recorded() == []


def test_the_unified_hierarchy_is_found_wherever_it_is(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "30 20 0:26 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids\n"
        "31 20 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    )
    assert cgroup.hierarchy(info) == Path("/sys/fs/cgroup/unified")
    info.write_text("30 20 0:26 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n")
    assert cgroup.hierarchy(info) is None


def test_the_mirrors_are_the_hosts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHD_DEBIAN_MIRROR", raising=False)
    (tmp_path / "sources.list.d").mkdir()
    assert debian.mirrors(tmp_path) == ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
    (tmp_path / "sources.list").write_text("# deb http://no.example/debian trixie main\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: https://near.example/debian/\n\nTypes: deb\nURIs: http://near.example/debian-security\n"
    )
    assert debian.mirrors(tmp_path) == ("https://near.example/debian", "http://near.example/debian-security")
    monkeypatch.setenv("MESHD_DEBIAN_MIRROR", "http://other.example/debian")
    assert debian.mirrors(tmp_path)[0] == "http://other.example/debian"


def test_the_head_needs_what_the_project_says(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[build-system]\nrequires = ["hatchling"]\n'
        '[project]\ndependencies = ["click>=8"]\n'
        '[project.optional-dependencies]\naws = ["boto3"]\ngce = ["gcp"]\ndev = ["pytest"]\n'
    )
    assert images.requirements(project) == ("boto3", "click>=8", "editables", "gcp", "hatchling")


@pytest.mark.parametrize("name", ["windows", "windows-torch", "-torch", "trixie-torch-torch"])
async def test_an_unknown_image_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no image '{name}'"):
        await images.image_by_name(name)


@pytest.mark.parametrize("name", ["", "Up", "a-b", "../x", "a" * 13])
def test_a_sandbox_id_is_harmless(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 12 letters"):
        World(name)
