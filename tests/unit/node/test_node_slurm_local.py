"""What the agent makes of Slurm's settings where the kernel does not allow them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.node.meshd_node import kernel, kind, slurm_files, slurm_local
from deploy.node.meshd_node.errors import NotPossible
from deploy.node.meshd_node.kernel import Kernel
from deploy.node.meshd_node.paths import Paths

CONTAINER = Kernel("", False)
MACHINE = Kernel("v2", True)
NEW, OLD = (24, 11), (22, 5)
GOOD = {
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "CgroupPlugin": "autodetect",
    "ConstrainCores": "yes",
    "ConstrainRAMSpace": "yes",
    "ConstrainDevices": "yes",
}
WITHOUT = {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "CgroupPlugin": "disabled"}
MOUNTS_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
MOUNTS_V1 = (
    "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "31 30 0:27 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
    "32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
ROOT = Path("/sys/fs/cgroup")


def test_a_machine_with_cgroups_takes_the_heads_settings() -> None:
    assert slurm_local.decide(MACHINE, GOOD, NEW) == {}
    assert slurm_local.decide(Kernel("v1", True), GOOD, OLD) == {}


@pytest.mark.parametrize(("release", "plugin"), [(NEW, "disabled"), ((24, 5), "disabled"), (OLD, "cgroup/v1")])
def test_a_container_does_without_cgroups(release: tuple[int, int], plugin: str) -> None:
    settings = slurm_local.decide(CONTAINER, GOOD, release)
    assert settings == {
        "slurm.conf": {
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/affinity",
            "JobAcctGatherType": "jobacct_gather/linux",
            "JobAcctGatherParams": "OverMemoryKill",
        },
        "cgroup.conf": {"CgroupPlugin": plugin},
    }
    assert slurm_local.lost(settings, GOOD) == [
        "process_tracking", "core_limits", "memory_limits", "device_limits", "accounting",
    ]  # fmt: skip


def test_a_head_without_cgroups_changes_nothing_anywhere() -> None:
    assert slurm_local.decide(CONTAINER, WITHOUT, NEW) == {}
    assert slurm_local.decide(CONTAINER, {}, NEW) == {}


@pytest.mark.parametrize(
    ("tasks", "here"),
    [
        ("task/cgroup", "task/affinity"),
        ("cgroup", "task/affinity"),
        ("task/affinity, task/cgroup", "task/affinity"),
        ("task/Cgroup,task/none", "task/none"),
        ("task/none", None),
        ("task/affinity", None),
        ("", None),
    ],
)
def test_task_plugins(tasks: str, here: str | None) -> None:
    settings = slurm_local.decide(CONTAINER, {**WITHOUT, "TaskPlugin": tasks}, NEW)
    assert settings.get("slurm.conf", {}).get("TaskPlugin") == here
    assert slurm_local.lost(settings, {**WITHOUT, "TaskPlugin": tasks}) == []


@pytest.mark.parametrize(
    ("tasks", "here"),
    [
        ("task/cgroup,task/affinity", "task/none"),
        ("task/cgroup", "task/none"),
        ("task/affinity", "task/none"),
        ("affinity", "task/none"),
        ("task/none", None),
        ("", None),
    ],
)
def test_jobs_that_cannot_be_bound(tasks: str, here: str | None) -> None:
    head = {**WITHOUT, "TaskPlugin": tasks}
    settings = slurm_local.decide(Kernel("", True, affinity=False), head, NEW)
    assert settings.get("slurm.conf", {}).get("TaskPlugin") == here
    assert slurm_local.lost(settings, head) == (["core_limits"] if "affinity" in tasks else [])


def test_with_control_groups_only_affinity_goes() -> None:
    settings = slurm_local.decide(Kernel("v1", True, affinity=False), GOOD, NEW)
    assert settings == {"slurm.conf": {"TaskPlugin": "task/cgroup"}}
    assert slurm_local.lost(settings, GOOD) == ["core_limits"]


@pytest.mark.parametrize(
    ("head", "here"),
    [
        ({"JobAcctGatherType": "jobacct_gather/linux"}, "OverMemoryKill"),
        ({"JobAcctGatherParams": "NoShared"}, "NoShared,OverMemoryKill"),
        ({"JobAcctGatherParams": "UsePss,OverMemoryKill"}, None),
        ({"JobAcctGatherType": "jobacct_gather/none"}, None),
        ({"ConstrainRAMSpace": "no"}, None),
        ({"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "yes"}, "OverMemoryKill"),
        ({"TaskPlugin": "task/affinity"}, None),
    ],
)
def test_memory_is_watched_where_it_cannot_be_limited(head: dict[str, str], here: str | None) -> None:
    settings = slurm_local.decide(CONTAINER, {**GOOD, **head}, NEW)
    assert settings["slurm.conf"].get("JobAcctGatherParams") == here


def test_a_private_tmp_needs_mounts() -> None:
    head = {**WITHOUT, "JobContainerType": "job_container/tmpfs"}
    settings = slurm_local.decide(CONTAINER, head, NEW)
    assert settings == {"slurm.conf": {"JobContainerType": "job_container/none"}}
    assert slurm_local.lost(settings, head) == ["private_tmp"]
    assert slurm_local.decide(Kernel("", True), head, NEW) == {}


@pytest.mark.parametrize("plugin", ["disabled", "cgroup/disabled", "cgroup/v1"])
def test_cgroups_that_are_off_stay_as_they_are(plugin: str) -> None:
    assert slurm_local.decide(CONTAINER, {**WITHOUT, "CgroupPlugin": plugin}, OLD) == {}


def test_unset_settings_are_not_guessed() -> None:
    assert slurm_local.decide(CONTAINER, {"ProctrackType": "proctrack/pgid"}, NEW) == {
        "cgroup.conf": {"CgroupPlugin": "disabled"}
    }


@pytest.mark.parametrize(
    ("mounts", "systemd", "read_only", "usable"),
    [
        (MOUNTS_V2, True, (), "v2"),
        (MOUNTS_V2, False, (), ""),
        (MOUNTS_V2, True, ("/sys/fs/cgroup",), ""),
        (MOUNTS_V1, True, (), "v1"),
        (MOUNTS_V1, False, (), "v1"),
        (MOUNTS_V1, True, ("/sys/fs/cgroup/freezer",), ""),
        ("", True, (), ""),
        ("garbage\n30 23 - cgroup2\n\n", True, (), ""),
        (MOUNTS_V2.replace("/sys/fs/cgroup", "/elsewhere"), True, (), ""),
    ],
)
def test_which_cgroups_slurmd_can_use(mounts: str, systemd: bool, read_only: tuple[str, ...], usable: str) -> None:
    assert kernel.usable_cgroups(mounts, ROOT, systemd, lambda path: path not in read_only) == usable


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ("Name:\tx\nCapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t00000000a80425fb\n", False),
        ("Name:\tx\n", False),
        ("CapEff:\t\n", False),
    ],
)
def test_who_may_mount(tmp_path: Path, status: str, may: bool) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(status)
    assert kind.may_mount(tmp_path) is may


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A machine without cgroups, with slurmd 24.11."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("")
    (tmp_path / "proc/self/status").write_text("CapEff:\t00000000a80425fb\n")
    slurmd = tmp_path / "bin/slurmd"
    slurmd.parent.mkdir()
    slurmd.write_text("#!/bin/sh\necho slurm-wlm 24.11.5\n")
    slurmd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slurmd.parent}:{os.environ['PATH']}")
    return Paths(tmp_path, tmp_path / "proc")


def test_the_files_come_and_go_with_the_heads_settings(container: Paths) -> None:
    container.slurmconf_library.parent.mkdir(parents=True)
    container.slurmconf_library.write_bytes(b"")
    local = slurm_files.SlurmLocal(container)
    variables = local.put(GOOD)
    assert variables == {
        "LD_PRELOAD": str(container.slurmconf_library),
        "MESHD_SLURM_LOCAL": str(container.slurm_local),
    }
    assert "device_limits" in local.lacks
    lines = (container.slurm_local / "slurm.conf").read_text().splitlines()
    assert "ProctrackType=proctrack/linuxproc" in lines
    assert (container.slurm_local / "cgroup.conf").read_text().splitlines()[1:] == ["CgroupPlugin=disabled"]
    assert local.put(WITHOUT) == {}
    assert local.lacks == []
    assert list(container.slurm_local.iterdir()) == []


def test_without_the_library_the_reason_is_told(container: Paths) -> None:
    with pytest.raises(NotPossible) as caught:
        slurm_files.SlurmLocal(container).put(GOOD)
    assert caught.value.stage == "slurmd"
    assert "ProctrackType=proctrack/cgroup" in str(caught.value)


def test_a_plugin_that_no_setting_asks_for_needs_no_library(container: Paths) -> None:
    assert slurm_files.SlurmLocal(container).put({"ProctrackType": "proctrack/linuxproc"}) == {}
