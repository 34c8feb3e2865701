"""Asks a cloud about one machine, which its listing lacks, and gives the machine up when it has ended."""

from __future__ import annotations

from collections.abc import Callable

from meshd.codes import EventKind
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.cooldowns import Cooldowns
from meshd.errors import ProviderError
from meshd.model.machine import Machine
from meshd.model.plan import AskCloud
from meshd.plan.failure_rules import cause_of_end
from meshd.plan.leaving import way_out
from meshd.plan.liveness import ENDED
from meshd.provider_api import Instance, InstanceId, InstanceState, Provider, ProviderName


class MachineLookup:
    """Carries out AskCloud.

    Args:
        cooldowns: what gets a cooldown by what the cloud says.
        provider: the provider of a name; raises AuthFailed when it is no longer enabled.
    """

    def __init__(self, machine_store: MachineStore, cooldowns: Cooldowns, provider: Callable[[str], Provider]) -> None:
        self._machine_store = machine_store
        self._cooldowns = cooldowns
        self._known = provider

    async def ask(self, step: AskCloud) -> None:
        """Ask about a machine that its cloud's listing lacks, and give it up when the cloud says that it has ended.

        No answer settles nothing: the listing, and the phase's deadline, still hold.
        """
        machine = self._machine_store.get(step.subject)
        try:
            found = await self._known(machine.provider).get(handle(machine))
        except ProviderError as error:
            text = f"{step.reason}, and knows no more: {error}"
            at = self._machine_store.now()
            self._machine_store.change(machine.name, EventKind.ASKED_CLOUD, text, cloud_asked_at=at)
            return
        now = self._machine_store.get(step.subject)
        if now.phase is not machine.phase or now.failure or now.heartbeat_at != machine.heartbeat_at:
            return  # it got on, or spoke, meanwhile
        if found.state not in ENDED and found.state is not InstanceState.TERMINATING:
            text = f"{step.reason}, but says that it is {found.state.value}"
            at = self._machine_store.now()
            self._machine_store.change(now.name, EventKind.ASKED_CLOUD, text, cloud_asked_at=at, cloud_confirmed_at=at)
            return
        words = found.reason or found.vendor_state or found.state.value
        cause = cause_of_end(found.state, words, joined=now.facts is not None)
        failure = f"{now.provider} ended it: {words}"
        self._cooldowns.failed(now, cause, words)
        self._machine_store.move(now.name, way_out(now), failure, failure=failure, cause=cause, vendor_words=words)


def handle(machine: Machine) -> Instance:
    """The machine as a provider is asked for it."""
    return Instance(
        provider=ProviderName(machine.provider), id=InstanceId(machine.instance_id), token=machine.name,
        state=InstanceState.UNKNOWN, region=machine.region, launched_at=machine.launched_at,
    )  # fmt: skip
