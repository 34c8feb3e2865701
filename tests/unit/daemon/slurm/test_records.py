"""Doctor's check of accounting."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshd.daemon.slurm.report import Records
from meshd.errors import CommandError
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient

ON = "AccountingStorageHost   = localhost\nAccountingStorageType   = accounting_storage/slurmdbd\nClusterName = lab\n"
OFF = "AccountingStorageHost   = localhost\nAccountingStorageType   = (null)\nClusterName = lab\n"


@pytest.mark.parametrize(
    ("config", "port", "queue", "found"),
    [
        (OFF, "", 0, ("ok", "")),
        (ON, "6817", 0, ("ok", "")),
        (ON.replace("accounting_storage/", ""), None, 7, ("fail", "accounting_down")),
        (ON, None, 7, ("fail", "accounting_down")),
        (ON, "", 0, ("fail", "accounting_unregistered")),
        (ON, "0", 0, ("fail", "accounting_unregistered")),
        (ON, "6817", 1001, ("warn", "accounting_behind")),
    ],
)
async def test_the_doctor(config: str, port: str | None, queue: int, found: tuple[str, str]) -> None:
    async def run(argv: Sequence[str], **_: object) -> Result:
        if argv[0] == "sacctmgr" and port is None:
            raise CommandError(list(argv), 1, "Connection refused")
        text = {"scontrol": config, "sdiag": f"DBD Agent queue size: {queue}\n", "sacctmgr": f"{port}\n"}[argv[0]]
        return Result(tuple(argv), 0, text, "")

    row = await Records(SlurmClient(run, 1.0))()
    assert (row.status, row.code) == found
    assert bool(row.cure) == (row.status != "ok")
