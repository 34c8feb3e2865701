"""What all cases share: the rig, an adapter on it, and an offer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
import pytest_asyncio

from meshd.contract.faults import Kind
from meshd.contract.rig import Rig
from meshd.provider_api import Offer, Provider

REPORT = "meshd_contract"


def kinds(*which: Kind) -> pytest.MarkDecorator:
    """Run a case once for each kind of fault, as its argument `kind`."""
    return pytest.mark.parametrize("kind", which, ids=[kind.value for kind in which])


@pytest.mark.asyncio
class Cases:
    """Base of the groups of cases."""

    #: The rig of the adapter under test.
    rig_class: ClassVar[type[Rig]]

    @pytest_asyncio.fixture
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
        """A fresh cloud. What the case tried on it goes into the report."""
        async with self.rig_class() as rig:
            yield rig
        told = {
            "rig": rig.label or rig.name,
            "asked": sorted(str(kind) for kind in rig.asked),
            "missed": {str(k): why for k, why in rig.missed.items()},
        }
        request.node.user_properties.append((REPORT, told))

    @pytest_asyncio.fixture
    async def provider(self, rig: Rig) -> Provider:
        """An adapter."""
        return rig.make()

    @pytest_asyncio.fixture
    async def offer(self, rig: Rig, provider: Provider) -> Offer:
        """Something that can be rented."""
        return (await provider.offers(rig.gpu))[0]
