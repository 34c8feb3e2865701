"""Fixtures of all cases: the rig, an adapter on it, and an offer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
import pytest_asyncio

from meshd.contract.faults import FaultKind
from meshd.contract.rig import Rig
from meshd.contract.steps import rentable
from meshd.provider_api import Offer, Provider

REPORT = "meshd_contract"


def kinds(*which: FaultKind) -> pytest.MarkDecorator:
    """Run a case once for each kind of fault, passed as the argument `kind`."""
    return pytest.mark.parametrize("kind", which, ids=[kind.value for kind in which])


@pytest.mark.asyncio
class Cases:
    """Base class of all groups of cases."""

    #: The rig of the adapter under test.
    rig_class: ClassVar[type[Rig]]

    @pytest_asyncio.fixture
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
        """A new cloud. The faults that the case injects go into the report."""
        async with self.rig_class() as rig:
            yield rig
        recorded = {
            "rig": rig.label or rig.name,
            "injected": sorted(str(kind) for kind in rig.injected),
            "skipped": {str(k): why for k, why in rig.skipped.items()},
        }
        request.node.user_properties.append((REPORT, recorded))

    @pytest_asyncio.fixture
    async def provider(self, rig: Rig) -> Provider:
        """An adapter on the rig."""
        return rig.make()

    @pytest_asyncio.fixture
    async def offer(self, rig: Rig, provider: Provider) -> Offer:
        """An offer with free capacity."""
        return (await rentable(rig, provider))[0]
