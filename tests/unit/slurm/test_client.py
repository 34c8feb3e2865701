"""What SlurmClient adds to Slurm's commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from meshd.errors import CommandTimeout, SlurmError
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient

CONFIG = "ProctrackType           = proctrack/cgroup\nTaskPlugin              = (null)\n"


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
