"""What keeps a machine from joining is told to the head, with the join token, while it lasts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from deploy.node.meshd_node import agent as agents
from deploy.node.meshd_node import facts, tools
from deploy.node.meshd_node.bounded import Hangs
from deploy.node.meshd_node.errors import (
    HeadRefused,
    MungeFault,
    NotPossible,
    ToolFailed,
    ToolHangs,
    ToolMissing,
    ToolTimeout,
)
from deploy.node.meshd_node.headlink import HeadLink
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.trouble import SAME_AGAIN_S, SPACING_S, TEXT_MAX, Trouble, stage_of
from tests.unit.node.standins import House, program, until

LOCK = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (unattended-upgr)"


def lack_slurmd(house: House) -> None:
    """An image without slurmd, that may be given packages."""
    (house.machine.root / "bin/slurmd").unlink()
    program(house.machine.root / "bin", "dpkg-query", "exit 1\n")
    program(house.machine.root / "bin", "dpkg", "exit 0\n")
    ids = {"slurm_uid": os.getuid(), "slurm_gid": os.getgid(), "munge_uid": os.getuid(), "munge_gid": os.getgid()}
    house.handlers.needs_answer = house.handlers.needs_answer.model_copy(update={"packages": ("slurmd",), **ids})


async def test_apts_words_reach_the_head_while_it_is_tried_again(house: House) -> None:
    lack_slurmd(house)
    program(house.machine.root / "bin", "apt-get", f'echo "{LOCK}" >&2; exit 100\n')
    await house.machine.start()
    await until(lambda: house.handlers.troubles)
    stage, text = house.handlers.troubles[0]
    assert stage == "packages"
    assert LOCK in text
    assert "100" in text
    assert house.machine.process is not None
    assert house.machine.process.returncode is None


@pytest.mark.parametrize(
    ("name", "script", "stage"),
    [("slurmd", '[ "$1" = -V ] && echo slurm 24.11.5 || { echo no hwloc >&2; exit 3; }\n', "slurmd")],
)
async def test_a_broken_slurmd_is_told_with_its_words(house: House, name: str, script: str, stage: str) -> None:
    program(house.machine.root / "bin", name, script)
    await house.machine.start()
    await until(lambda: house.handlers.troubles)
    assert house.handlers.troubles[0][0] == stage
    assert "no hwloc" in house.handlers.troubles[0][1]


async def test_gpus_that_hang_are_told_before_the_join(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "NVIDIA_TIMEOUT_S", 0.3)
    monkeypatch.setattr(tools, "_hanging", {})
    program(house.machine.root / "bin", "nvidia-smi", "exec sleep 600\n")
    monkeypatch.setenv("PATH", f"{house.machine.root / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("STANDIN_ROOT", str(house.machine.root))
    node = Node(Paths(house.machine.root), "true", tun=True)
    link = HeadLink(["127.0.0.1"], house.port)
    agent = agents.Agent(node, link, house.machine.token.get_secret_value(), 3600.0, 1.0)
    with pytest.raises(ToolTimeout) as caught:
        await asyncio.to_thread(agent._step)
    await asyncio.to_thread(agent._report_problem, caught.value)
    assert [stage for stage, _ in house.handlers.troubles] == ["gpu"]
    assert "nvidia-smi" in house.handlers.troubles[0][1]
    link.close()


def test_each_failure_names_what_the_machine_was_at() -> None:
    for error, stage in (
        (ToolHangs("nvidia-smi", 7), "gpu"), (ToolTimeout("nvidia-smi", 60), "gpu"),
        (ToolFailed("apt-get", 100, LOCK), "packages"), (ToolMissing("slurmd"), "slurmd"),
        (ToolFailed("useradd", 1, "cannot lock /etc/passwd"), "accounts"), (MungeFault("no"), "munge"),
        (OSError(28, "No space left on device"), "disk"), (Hangs("a share"), "disk"),
        (NotPossible("lacks slurmd", "another image", "packages"), "packages"), (ToolMissing("systemctl"), "agent"),
        (HeadRefused(403, "no", "", fatal=True), "agent"),
    ):  # fmt: skip
        assert stage_of(error) == stage, error


class Line:
    """Stands for the line to the head."""

    def __init__(self) -> None:
        self.sent: list[dict[str, str]] = []
        self.error: Exception | None = None

    def call(self, _method: str, _path: str, _token: str, body: dict[str, str], _timeout_s: float) -> None:
        self.sent.append(body)
        if self.error is not None:
            raise self.error


def test_the_same_words_are_sent_once_a_minute_and_none_without_a_pause() -> None:
    line, now_s, token = Line(), [0.0], "t"
    trouble = Trouble(line, lambda: token, lambda: now_s[0])  # type: ignore[arg-type]
    for _ in range(int(SAME_AGAIN_S)):
        trouble.report("gpu", "hangs")
        now_s[0] += 1
    assert len(line.sent) == 1
    for n in range(60):
        trouble.report("packages", f"try {n} {'x' * 1000}")
        now_s[0] += 1
    assert len(line.sent) <= 2 + 60 / SPACING_S
    assert all(len(one["text"]) <= TEXT_MAX for one in line.sent)
    line.error = HeadRefused(404, "not found", "", fatal=False)
    now_s[0] += SAME_AGAIN_S
    trouble.report("gpu", "hangs")
    sent = len(line.sent)
    for _ in range(5):
        now_s[0] += SAME_AGAIN_S
        trouble.report("gpu", "hangs")
    assert len(line.sent) == sent, "an older head takes no reports"


async def test_what_failed_once_is_over_when_it_works(house: House) -> None:
    """A problem that stayed would be shown for as long as the agent runs."""
    await house.machine.start()
    await until(lambda: any(report.munge_ok for report in house.handlers.reports))
    blocked = house.machine.root / "var/lib/meshd-node"
    blocked.rename(blocked.with_name("away"))
    blocked.write_text("not a directory")
    result = house.handlers.queue.put("roster", {"version": 9, "roster": {}})
    await until(lambda: any(report.problem for report in house.handlers.reports))
    assert house.machine.process is not None
    assert house.machine.process.returncode is None, "it goes on"
    blocked.unlink()
    blocked.with_name("away").rename(blocked)
    assert (await house.handlers.queue.result(result, 60)) is not None
    seen = len(house.handlers.reports)
    await until(lambda: len(house.handlers.reports) > seen + 1)
    assert house.handlers.reports[-1].problem == ""


# -- a reboot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "told"),
    [("117 reboot.target start waiting", True), ("118 kexec.target start waiting", True),
     ("117 poweroff.target start waiting", False), ("", False)],
)  # fmt: skip
async def test_the_head_is_told_of_a_reboot_and_of_nothing_else(house: House, jobs: str, told: bool) -> None:
    await house.machine.start()
    await until(lambda: any(report.phase == "ready" for report in house.handlers.reports))
    await house.machine.stop()
    root = house.machine.root
    (root / "run/systemd/system").mkdir(parents=True)
    program(root / "bin", "systemctl", f'case "$1" in list-jobs) echo "{jobs}";; esac\n')
    seen = len(house.handlers.reports)
    house.machine.extra = ("--systemctl", str(root / "bin/systemctl"))
    await house.machine.start()
    await until(lambda: len(house.handlers.reports) > seen)
    assert house.machine.process is not None
    house.machine.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await house.machine.process.wait() == 0
    assert (house.handlers.reports[-1].phase == "rebooting") is told
