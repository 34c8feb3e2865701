"""The contract suite on every adapter that is shipped, over real HTTP against its cloud's stand-in."""

from __future__ import annotations

from meshd.contract.suite import ContractSuite
from tests.contract.rigs import AwsRig, GceRig, GuardedRig, LambdaRig, PaperspaceRig, RunpodRig


class TestAws(ContractSuite):
    rig_class = AwsRig


class TestLambda(ContractSuite):
    rig_class = LambdaRig


class TestPaperspace(ContractSuite):
    rig_class = PaperspaceRig


class TestRunpod(ContractSuite):
    rig_class = RunpodRig


class TestGce(ContractSuite):
    rig_class = GceRig


class TestLambdaGuarded(ContractSuite):
    rig_class = GuardedRig
