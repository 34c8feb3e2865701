"""What many cases begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshd.contract.rig import Rented, Rig
from meshd.errors import Transient
from meshd.provider_api import Instance, LaunchRequest, Offer, Provider

CLUSTER = "lab"
TOKEN = "lab-h100-1-k7q2mz"  # noqa: S105  a machine's name
WARM_UP = 20
EFFECT_S = 20.0
LOOK_S = 0.02
USER_DATA_SECRET = "join-token-that-must-never-show"  # noqa: S105  what is looked for
USER_DATA = f"#!/bin/sh\n# {USER_DATA_SECRET}\necho 'grüß dich' > /run/meshd\n"


def request(offer: Offer, token: str = TOKEN, user_data: str = USER_DATA) -> LaunchRequest:
    """A launch request with a tag of the user's."""
    return LaunchRequest(token, CLUSTER, offer, user_data, {"meshd-cluster": CLUSTER, "meshd-pool": "h100"})


async def launched(rig: Rig, provider: Provider, token: str = TOKEN) -> Instance:
    """Launch one machine and wait until the cloud has it."""
    offers = await provider.offers(rig.gpu)
    instance = await provider.launch(request(offers[0], token))
    await rig.settle()
    return instance


async def running(rig: Rig, provider: Provider, token: str = TOKEN) -> Instance:
    """Launch one machine and let the time pass that it takes to boot."""
    instance = await launched(rig, provider, token)
    rig.advance(rig.boot_s + 1)
    return await provider.get(instance)


async def ended(rig: Rig, provider: Provider, instance: Instance) -> Instance:
    """Let the time pass that a machine takes to end, and look at it."""
    rig.advance(rig.end_s + 1)
    await rig.settle()
    return await provider.get(instance)


async def warmed(provider: Provider) -> Provider:
    """Let an adapter whose deadlines are short make its connections: its first call may take longer than they allow."""
    for _ in range(WARM_UP):
        try:
            await provider.list()
        except Transient:
            continue
        return provider
    raise AssertionError(f"{WARM_UP} calls of list() in a row have not ended within the deadline")


async def takes_effect(look: Callable[[], bool]) -> None:
    """Wait, in real time, for the effect of a call whose answer nobody waits for any more: it may not have arrived."""
    for _ in range(round(EFFECT_S / LOOK_S)):
        if look():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"a call whose answer is late has had no effect within {EFFECT_S:g} s")


def only_machine(rig: Rig) -> Rented:
    """The only machine that ever was."""
    (machine,) = rig.machines()
    return machine
