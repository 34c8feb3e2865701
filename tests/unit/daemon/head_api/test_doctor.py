"""The checks of `meshctl doctor`."""

from __future__ import annotations

from typing import Any

from meshd.api import schema as s
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.head_api.doctor import Doctor
from meshd.daemon.observe import report as source_report
from meshd.daemon.providers import report as provider_report
from meshd.daemon.reporting import Check
from meshd.errors import AuthFailed, TailnetError, Transient
from meshd.model.observed import Snapshot
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.daemon.small import Cloud
from tests.unit.worlds import GONE_DARK, snapshot


class BrokenCloud(Cloud):
    async def check(self) -> str:
        raise KeyError("account")


class PoorCloud(Cloud):
    async def check(self) -> str:
        raise AuthFailed("user meshd may not: ec2:RunInstances", provider="aws", operation="check")


class SickCloud(Cloud):
    async def check(self) -> str:
        raise Transient("HTTP 503", provider="aws", operation="check")


async def test_a_cloud_that_is_ill_is_no_wrong_credential() -> None:
    cloud: Any = SickCloud()
    row = await provider_report.check(cloud)
    assert (row.status, row.code) == ("fail", ProblemCode.PROVIDER_UNREADABLE)


async def test_a_missing_permission_has_a_cure_of_its_own() -> None:
    cloud: Any = PoorCloud()
    row = await provider_report.check(cloud)
    assert (row.name, row.status, row.code) == ("provider aws", "fail", ProblemCode.PROVIDER_REFUSES)
    assert "ec2:RunInstances" in row.text
    assert "docs/providers.md" in row.cure and "/etc/meshd/credentials/aws" in row.cure


async def no_key() -> s.CheckRow:
    raise TailnetError("no auth key: set auth_key_file")


async def test_every_check_has_its_row_whatever_breaks() -> None:
    def rows(seen: Snapshot | None) -> Doctor:
        cloud: Any = BrokenCloud()
        checks = (
            *source_report.checks(lambda: seen, tuple),
            Check(CheckName.AUTH_KEY, no_key, reads=True),
            *provider_report.checks({"aws": cloud}),
        )
        return Doctor(lambda: checks)

    async def codes(seen: Snapshot | None) -> dict[str, str]:
        return {row.name: row.code for row in await rows(seen)()}

    found = {row.name: row for row in await rows(snapshot())()}
    assert [found[name].status for name in ("slurm", "tailnet", "trust in hosts")] == ["ok"] * 3
    assert found["auth key"].code == ProblemCode.CHECK_FAILED
    assert (found["provider aws"].status, found["provider aws"].code) == ("fail", ProblemCode.MESHD_FAULT)
    dark = await codes(snapshot(slurm=GONE_DARK, tailnet=GONE_DARK))
    assert dark["slurm"] == ProblemCode.SLURM_UNREADABLE
    assert dark["tailnet"] == ProblemCode.TAILNET_UNREADABLE
    assert (await codes(None)).keys() == found.keys()
