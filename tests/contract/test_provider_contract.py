"""The contract suite on every shipped adapter, over real HTTP against its cloud's stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd.contract.plugin import ContractReport, table
from meshd.contract.suite import ContractSuite
from tests.contract.rigs import AwsRig, GceRig, GuardedRig, LambdaRig, PaperspaceRig, RunpodRig, RunpodSpotRig

DOCUMENT = Path(__file__).parents[2] / "docs" / "adapters.md"


class TestAws(ContractSuite):
    rig_class = AwsRig


class TestLambda(ContractSuite):
    rig_class = LambdaRig


class TestPaperspace(ContractSuite):
    rig_class = PaperspaceRig


class TestRunpod(ContractSuite):
    rig_class = RunpodRig


class TestRunpodSpot(ContractSuite):
    rig_class = RunpodSpotRig


class TestGce(ContractSuite):
    rig_class = GceRig


class TestLambdaGuarded(ContractSuite):
    rig_class = GuardedRig


def test_the_table_in_the_documents_is_current(request: pytest.FixtureRequest) -> None:
    """`pytest tests/contract/test_provider_contract.py --contract-table docs/adapters.md` writes it."""
    option = request.config.option
    if option.keyword or option.deselect or option.lf or any("::" in arg for arg in request.config.args):
        pytest.skip("not all cases were run")
    report = request.config.pluginmanager.get_plugin("meshd-contract-report")
    assert isinstance(report, ContractReport)
    cases = sum(
        isinstance(item, pytest.Function) and item.cls is not None and item.path == request.path
        for item in request.session.items
    )
    if sum(tried.cases.total() for tried in report.rigs.values()) < cases:
        pytest.skip("not all cases were run yet, or by another process")
    document = DOCUMENT.read_text("utf-8")
    found = table(report.rigs)
    assert [row for row in found.splitlines() if row not in document] == []
    assert found in document
