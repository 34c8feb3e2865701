"""The rules and the example of Prometheus's settings, by Prometheus's own tool: their syntax, and when alerts fire."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from deploy.sandbox.prometheus import ensure_prometheus
from tests.unit.obs.shipped import PROMETHEUS, rules

pytestmark = [
    pytest.mark.integration, pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="fetching the programs needs root"),
]  # fmt: skip

CASES = Path(__file__).with_name("meshd.rules.test.yml")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def promtool() -> Path:
    return await ensure_prometheus() / "promtool"


def told(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_prometheus_reads_them(promtool: Path) -> None:
    assert f"{len(rules())} rules found" in told(promtool, "check", "rules", PROMETHEUS / "meshd.rules.yml")
    assert "SUCCESS" in told(promtool, "check", "config", PROMETHEUS / "prometheus.yml")


async def test_each_alert_fires_when_it_should_and_not_before(promtool: Path) -> None:
    asked = [
        (one["alertname"], bool(one["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for one in case.get("alert_rule_test", ())  # others test a recording rule
    ]
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {name for name, fires in asked if fires} == alerts
    assert "SUCCESS" in told(promtool, "test", "rules", CASES)
