"""The contract suite: a class of test cases that any adapter runs by naming its rig.

    from meshd.contract.suite import ContractSuite

    class TestMyCloud(ContractSuite):
        rig_class = MyCloudRig

Load the plugin for the report, e.g. by `pytest -p meshd.contract.plugin`.
"""

from __future__ import annotations

from meshd.contract.cases.care import CareCases
from meshd.contract.cases.doubt import LaunchDoubtCases, ReadDoubtCases, TerminateDoubtCases
from meshd.contract.cases.lives import LifeCases, OddAnswerCases, SpotCases, TerminateCases
from meshd.contract.cases.offers import OfferCases
from meshd.contract.cases.refusals import RefusalCases
from meshd.contract.cases.renting import FreshCases, LaunchCases, ListCases
from meshd.contract.cases.soak import SoakCases

__all__ = ["ContractSuite"]


class ContractSuite(
    OfferCases,
    LaunchCases,
    ListCases,
    FreshCases,
    TerminateCases,
    LifeCases,
    SpotCases,
    OddAnswerCases,
    RefusalCases,
    LaunchDoubtCases,
    ReadDoubtCases,
    TerminateDoubtCases,
    CareCases,
    SoakCases,
):
    """Every case of the contract. A subclass sets `rig_class`."""
