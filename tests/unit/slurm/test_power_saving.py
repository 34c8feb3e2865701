"""Slurm's power saving, as `scontrol show config` shows it."""

from __future__ import annotations

import pytest

from meshd.model.observed import SlurmNode
from meshd.slurm.power_saving import RESUME_PROGRAM, SUSPEND_PROGRAM, power_saving

CONFIG = f"""\
ResumeFailProgram       = (null)
ResumeProgram           = {RESUME_PROGRAM}
ResumeRate              = 0 nodes/min
ResumeTimeout           = 1200 sec
SlurmctldParameters     = enable_configless,idle_on_node_suspend
SuspendExcNodes         = (null)
SuspendExcParts         = (null)
SuspendExcStates        = (null)
SuspendProgram          = {SUSPEND_PROGRAM}
SuspendRate             = 0 nodes/min
SuspendTime             = 864000 sec
SuspendTimeout          = 5 sec
"""


def with_value(key: str, value: str) -> str:
    return "".join(
        f"{key:24}= {value}\n" if line.startswith(f"{key} ") else f"{line}\n" for line in CONFIG.splitlines()
    )


def node(name: str, *states: str, partition: str = "h100") -> SlurmNode:
    return SlurmNode(name, "100.64.0.1", frozenset(states or {"IDLE", "CLOUD"}), partitions=(partition,))


NODES = {
    one.name: one
    for one in (
        node("a-1", "IDLE", "CLOUD", "POWERED_DOWN"), node("a-2"), node("a-3"), node("a-4", "IDLE", "DRAIN"),
        node("b-1", partition="debug"), node("b-2", "IDLE", "POWERING_DOWN", partition="debug"),
    )
}  # fmt: skip


def test_it_is_on_with_meshds_programs() -> None:
    found = power_saving(CONFIG)
    assert (found.on, found.resume_timeout_s, found.suspend_timeout_s) == (True, 1200, 5)
    assert found.stays(NODES) == frozenset()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ResumeProgram", "/opt/site/resume"), ("ResumeProgram", "(null)"), ("SuspendProgram", "(null)"),
        ("SuspendTime", "INFINITE"), ("SuspendTime", "NONE"), ("SuspendTime", "-1"),
    ],
)  # fmt: skip
def test_it_is_off_without_them_or_without_a_time(key: str, value: str) -> None:
    assert not power_saving(with_value(key, value)).on


def test_a_text_without_power_saving_is_off() -> None:
    assert not power_saving("SLURM_VERSION = 24.11.5\n").on


@pytest.mark.parametrize(
    ("key", "value", "stays"),
    [
        ("SuspendExcNodes", "a-[1,3],b-1", {"a-1", "a-3", "b-1"}),
        ("SuspendExcNodes", "a-[1-4]:1", {"a-2"}),
        ("SuspendExcNodes", "a-[1-4]:2,b-[1-2]:5", {"a-2", "a-3", "b-1"}),
        ("SuspendExcParts", "debug", {"b-1", "b-2"}),
        ("SuspendExcStates", "DRAIN,FAIL", {"a-4"}),
    ],
)
def test_what_stays_up(key: str, value: str, stays: set[str]) -> None:
    assert power_saving(with_value(key, value)).stays(NODES) == stays
