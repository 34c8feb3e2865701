"""Slurm's own parser is asked; where Slurm is not installed, nothing is."""

from __future__ import annotations

import asyncio
import socket

from meshd.runtime.run import run
from meshd.slurm.init import probe


async def test_where_no_slurmctld_listens_scontrol_is_not_asked() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with asyncio.timeout(60):
            assert await probe.running(run, "127.0.0.1", taken.getsockname()[1]) == {}
