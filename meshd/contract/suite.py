"""The contract suite: a class of test cases for any adapter. A subclass names the adapter's rig.

    from meshd.contract.suite import ContractSuite

    class TestMyCloud(ContractSuite):
        rig_class = MyCloudRig

The plugin prints the report: `pytest -p meshd.contract.plugin`.
"""

from __future__ import annotations

from meshd.contract.cases.billed import BilledCases
from meshd.contract.cases.console import ConsoleCases
from meshd.contract.cases.gang_answers import GangAnswerCases
from meshd.contract.cases.gangs import GangCases
from meshd.contract.cases.hygiene import HygieneCases
from meshd.contract.cases.images import ImageCases
from meshd.contract.cases.lifecycle import LifecycleCases, SpotCases, TerminateCases, UnexpectedAnswerCases
from meshd.contract.cases.offers import OfferCases
from meshd.contract.cases.random_faults import RandomFaultCases
from meshd.contract.cases.refusals import RefusalCases
from meshd.contract.cases.renting import FreshCases, LaunchCases, ListCases
from meshd.contract.cases.unclear import FailedReadCases, UnclearLaunchCases, UnclearTerminateCases

__all__ = ["ContractSuite"]


class ContractSuite(
    OfferCases,
    LaunchCases,
    ListCases,
    GangCases,
    GangAnswerCases,
    FreshCases,
    TerminateCases,
    LifecycleCases,
    SpotCases,
    ConsoleCases,
    ImageCases,
    BilledCases,
    UnexpectedAnswerCases,
    RefusalCases,
    UnclearLaunchCases,
    FailedReadCases,
    UnclearTerminateCases,
    HygieneCases,
    RandomFaultCases,
):
    """All cases of the contract. A subclass sets `rig_class`."""
