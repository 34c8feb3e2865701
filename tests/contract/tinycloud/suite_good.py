"""The contract suite on tinycloud. To run it, copy it to test_contract.py."""

from __future__ import annotations

from meshd.contract.suite import ContractSuite
from tinycloud.rig import TinyRig


class TestTiny(ContractSuite):
    rig_class = TinyRig
