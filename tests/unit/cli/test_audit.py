"""`meshctl audit`: what leaked comes with its cure, and cron learns of it by the exit code."""

from __future__ import annotations

import pytest

from meshd.api.endpoints import AUDIT
from meshd.api.schema import AuditRow, AuditView
from meshd.cli.errors import ExitCode
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW

OURS = AuditRow(provider="aws", kind="machine", id="i-1", name="lab-h100-1-k7q2mz", owner="ours", verdict="ours",
                age_s=3600, usd_per_hour=2.0)  # fmt: skip
LEAK = AuditRow(provider="aws", kind="volume", id="vol-1", owner="ours", verdict="leaked", why="its machine is gone",
                cure="aws ec2 delete-volume --volume-id vol-1 --region us-east-1")  # fmt: skip
FOREIGN = AuditRow(provider="gce", kind="address", id="us/x", owner="foreign", verdict="foreign", usd_per_hour=0.005)
FAILED = AuditRow(provider="runpod", kind="volume", verdict="unknown", why="it could not be listed: HTTP 502",
                  cure="`meshctl doctor`")  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ((OURS, FOREIGN), ExitCode.OK), ((LEAK, OURS), ExitCode.LEAKED), ((FAILED, OURS), ExitCode.NOT_LISTED),
        ((LEAK, FAILED), ExitCode.LEAKED),
    ],
)  # fmt: skip
def test_the_exit_code_tells_cron(
    head: SimHead, served: SimHead, meshctl: Meshctl, rows: tuple[AuditRow, ...], code: ExitCode
) -> None:
    view = AuditView(
        at=NOW, rows=list(rows), leaked=sum(r.verdict == "leaked" for r in rows),
        unknown=sum(r.verdict == "unknown" for r in rows), notes=["the tailnet: no credential"],
    )  # fmt: skip
    head.give(AUDIT, view)
    ran = meshctl("audit")
    assert ran.code == code
    for row in rows:
        assert row.verdict in ran.out and (row.id or row.kind) in ran.out
        assert not row.cure or f"do: {row.cure}" in ran.out
    assert "not listed: the tailnet: no credential" in ran.out
    head.give(AUDIT, view)
    ran = meshctl("audit", "-o", "json")
    assert ran.code == code and len(ran.json()["rows"]) == len(rows)
    head.give(AUDIT, view)
    shown = meshctl("audit", "--leaked", "-o", "json").json()["rows"]
    assert [row["verdict"] for row in shown] == [r.verdict for r in rows if r.verdict in {"leaked", "unknown"}]
