"""What SlurmClient adds to Slurm's commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from meshd.errors import CommandTimeout, SlurmError
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient

CONFIG = (
    "ProctrackType           = proctrack/cgroup\nTaskPlugin              = (null)\nSLURM_VERSION           = 24.11.5\n"
)


class Slow:
    """A scontrol that answers when it is let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()
        self.fails = False

    async def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.calls += 1
        await self.go.wait()
        if self.fails:
            raise CommandTimeout(list(argv), 1.0)
        return Result(tuple(argv), 0, CONFIG, "")


class Told:
    """A scontrol that takes everything and keeps what it was told."""

    def __init__(self) -> None:
        self.argv: list[list[str]] = []

    async def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.argv.append(list(argv))
        return Result(tuple(argv), 0, "", "")


async def test_the_addresses_of_many_nodes_are_set_in_few_calls() -> None:
    scontrol = Told()
    client = SlurmClient(scontrol, 1.0)
    addrs = {f"h100-{i}": f"100.64.{i // 250}.{i % 250 + 1}" for i in range(1, 2502)}
    await client.set_node_addrs(addrs)
    assert [argv[:2] for argv in scontrol.argv] == [["scontrol", "update"]] * 3
    seen: dict[str, str] = {}
    for argv in scontrol.argv:
        names, places, hosts = (word.partition("=")[2].split(",") for word in argv[2:])
        assert names == hosts
        seen |= dict(zip(names, places, strict=True))
    assert seen == addrs
    await client.set_node_addrs({})
    for odd in ({"h100-1,h100-2": "100.64.0.1"}, {"h100-1": "100.64.0.1 state=down"}, {"-x": "100.64.0.1"}):
        with pytest.raises(SlurmError):
            await client.set_node_addrs(odd)
    assert len(scontrol.argv) == 3


async def test_those_who_ask_for_the_settings_at_once_share_one_command() -> None:
    scontrol = Slow()
    client = SlurmClient(scontrol, 1.0)
    many = [asyncio.create_task(client.node_settings()) for _ in range(50)]
    await asyncio.sleep(0)
    many[0].cancel()
    scontrol.go.set()
    answers = await asyncio.gather(*many, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [{"ProctrackType": "proctrack/cgroup"}] * 49
    assert scontrol.calls == 1
    scontrol.fails = True
    with pytest.raises(SlurmError):
        await client.node_settings()
    assert scontrol.calls == 2


class Recorder:
    """A scontrol that notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def __call__(self, argv: Sequence[str], **_: Any) -> Result:
        self.calls.append(list(argv))
        return Result(tuple(argv), 0, CONFIG, "")


async def test_many_slots_are_one_command() -> None:
    scontrol = Recorder()
    client = SlurmClient(scontrol, 1.0)
    slots = [*(f"h100-{index}" for index in range(1, 1001)), "a100-7"]
    await client.power_down(slots, "meshd:  no\ncapacity", force=True)
    await client.drain_slots([], "meshd: nothing")
    name = "nodename=a100-7,h100-[1-1000]"
    assert [call for call in scontrol.calls if call[1] == "update"] == [
        ["scontrol", "update", name, "state=power_down_force", "reason=meshd: no capacity"],
        ["scontrol", "update", name, "instanceid=", "instancetype="],
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wait_s": 600.4}, ["starttime=now+600"]),
        ({"wait_s": 0}, ["starttime=now"]),
        ({"requeue": True, "admin_comment": "meshd: no\n capacity"}, ["requeue=1", "admincomment=meshd: no capacity"]),
        ({"admin_comment": ""}, ["admincomment="]),
    ],
)
async def test_a_change_of_a_job(changes: dict[str, Any], words: list[str]) -> None:
    scontrol = Recorder()
    await SlurmClient(scontrol, 1.0).update_job("7_3", **changes)
    assert scontrol.calls == [["scontrol", "update", "jobid=7_3", *words]]


@pytest.mark.parametrize("job", ["", "7;reboot", "name", "-1", "7_[1-2]"])
async def test_only_the_id_of_one_job_reaches_slurm(job: str) -> None:
    scontrol = Recorder()
    with pytest.raises(SlurmError):
        await SlurmClient(scontrol, 1.0).requeue(job)
    assert not scontrol.calls


async def test_power_saving_is_read_again_when_it_may_have_changed() -> None:
    now_s, scontrol = [0.0], Recorder()
    client = SlurmClient(scontrol, 1.0, lambda: now_s[0])
    await client.power_saving()
    now_s[0] = 4.0
    await client.power_saving()
    assert len(scontrol.calls) == 1
    await client.reconfigure()
    await client.power_saving()
    now_s[0] = 10.0
    await client.power_saving()
    assert [call[1] for call in scontrol.calls] == ["show", "reconfigure", "show", "show"]
