"""Steps that many cases begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshd import gpus
from meshd.contract.rig import CloudMachine, Rig
from meshd.errors import Transient
from meshd.gang_id import gang_id, gang_machines
from meshd.provider_api import CLUSTER_TAG, GANG_TAG, GangRequest, Instance, LaunchRequest, Offer, Provider

CLUSTER = "lab"
TOKEN = "lab-h100-1-k7q2mz"  # noqa: S105  a machine's name
WARM_UP = 20
EFFECT_S = 20.0
LOOK_S = 0.02
USER_DATA_SECRET = "join-token-that-must-never-show"  # noqa: S105  what must appear nowhere
USER_DATA = f"#!/bin/sh\n# {USER_DATA_SECRET}\necho 'grüß dich' > /run/meshd\n"


def request(offer: Offer, token: str = TOKEN, user_data: str = USER_DATA) -> LaunchRequest:
    """A launch request with one tag besides the cluster's."""
    return LaunchRequest(token, CLUSTER, offer, user_data, {CLUSTER_TAG: CLUSTER, "meshd-pool": "h100"})


def gang_request(offer: Offer, machines: int, *, unique: str = "k7q2mz", user_data: str = USER_DATA) -> GangRequest:
    """A request for several machines at once, in slots that do not follow each other."""
    gang = gang_id([f"lab-h100-{slot}-{unique}" for slot in (*range(1, machines), machines + 7)])
    tags = {CLUSTER_TAG: CLUSTER, GANG_TAG: gang, "meshd-pool": "h100"}
    return GangRequest(gang, gang_machines(gang), CLUSTER, offer, user_data, tags)


async def rentable(rig: Rig, provider: Provider, *, spot: bool | None = None) -> list[Offer]:
    """The offers that the rig wants rented; `spot` overrides the rig's own."""
    wanted = rig.spot if spot is None else spot
    return [
        offer
        for offer in await provider.offers()
        if gpus.matches(rig.gpu, offer.gpu) and offer.gpus == rig.gpus and wanted in (None, offer.spot)
    ]


async def launched(rig: Rig, provider: Provider, token: str = TOKEN) -> Instance:
    """Launch one machine and wait until the cloud has it."""
    offers = await rentable(rig, provider)
    instance = await provider.launch(request(offers[0], token))
    await rig.settle()
    return instance


async def running(rig: Rig, provider: Provider, token: str = TOKEN) -> Instance:
    """Launch one machine and move the clock until it runs."""
    instance = await launched(rig, provider, token)
    rig.advance(rig.boot_s + 1)
    return await provider.get(instance)


async def ended(rig: Rig, provider: Provider, instance: Instance) -> Instance:
    """Move the clock until a machine that is ending has ended; returns what the adapter says then."""
    rig.advance(rig.end_s + 1)
    await rig.settle()
    return await provider.get(instance)


async def warmed(provider: Provider) -> Provider:
    """Open the connections of an adapter with short deadlines, since its first call may take longer than they allow."""
    for _ in range(WARM_UP):
        try:
            await provider.list()
        except Transient:
            continue
        return provider
    raise AssertionError(f"{WARM_UP} consecutive calls of list() missed the deadline")


async def takes_effect(look: Callable[[], bool]) -> None:
    """Wait, in real time, for the effect of a call that timed out: the request may still be on its way."""
    for _ in range(round(EFFECT_S / LOOK_S)):
        if look():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"a call that timed out had no effect within {EFFECT_S:g} s")


def only_machine(rig: Rig) -> CloudMachine:
    """The only machine that was ever made."""
    (machine,) = rig.machines()
    return machine
