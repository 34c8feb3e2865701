"""The suite on each adapter with a bug. These cases must fail."""

from __future__ import annotations

from meshd.contract.suite import ContractSuite
from tinycloud.bugs import BUGS
from tinycloud.rig import TinyRig

for bug in BUGS:
    rig = type(bug.__name__, (TinyRig,), {"provider": bug, "label": bug.__name__})
    globals()[f"Test{bug.__name__}"] = type(f"Test{bug.__name__}", (ContractSuite,), {"rig_class": rig})
