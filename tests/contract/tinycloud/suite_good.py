"""What the author of an adapter writes to have it tried. Here it is given another name, so as not to run in place."""

from __future__ import annotations

from meshd.contract.suite import ContractSuite
from tinycloud.rig import TinyRig


class TestTiny(ContractSuite):
    rig_class = TinyRig
