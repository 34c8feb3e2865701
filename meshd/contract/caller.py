"""An honest caller: what meshd does with an adapter, in the small.

It keeps to the contract and knows no more than the contract tells: a create call in doubt is looked for by its name
until lists can be trusted, and only then sent again; an end is asked for until the machine is gone; whatever a list
shows that is not wanted is ended. So whoever leaks or doubles machines under it breaks the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.errors import NotFound, ProviderError, Transient, Uncertain
from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, Provider

#: States of a machine that will never run again, though it may still cost.
_BROKEN = frozenset({InstanceState.STOPPED, InstanceState.PREEMPTED, InstanceState.FAILED})


@dataclass(slots=True)
class Slot:
    """One machine that is wanted, under a name that is used for one machine only.

    Attributes:
        held: the machine, once there is one.
        doubt_since: when a create call got no clear answer.
    """

    token: str
    held: Instance | None = None
    doubt_since: datetime | None = None


class HonestCaller:
    """Keeps as many machines as are wanted.

    Attributes:
        slots: the machines that are wanted.
        ending: those that are being ended.
        told_gone: names of machines of which the adapter has said that they are gone.
        calls: how many there were.

    Args:
        provider: the adapter.
        request: the launch request for a name.
        now: UTC clock.
        doubt_s: after so many seconds a list shows a machine if it was made.
    """

    def __init__(
        self, provider: Provider, request: Callable[[str], LaunchRequest], now: Callable[[], datetime], doubt_s: float
    ) -> None:
        self.slots: list[Slot] = []
        self.ending: dict[InstanceId, Instance] = {}
        self.told_gone: set[str] = set()
        self.calls = 0
        self._provider = provider
        self._request = request
        self._now = now
        self._doubt = timedelta(seconds=doubt_s)
        self._unwanted: list[Slot] = []
        self._names = 0

    @property
    def settled(self) -> bool:
        """Every wanted machine runs, and there is nothing else."""
        return not self.ending and not self._unwanted and all(_runs(slot.held) for slot in self.slots)

    def want_one_more(self) -> None:
        """One machine more is wanted."""
        self._names += 1
        self.slots.append(Slot(f"lab-soak-{self._names}-abcdef"))

    def want_one_less(self, index: int) -> None:
        """The machine of this index is not wanted any more."""
        self._give_up(self.slots.pop(index))

    async def turn(self) -> None:
        """One step for each machine."""
        for slot in list(self.slots):
            await (self._launch(slot) if slot.held is None else self._look(slot, slot.held))
        for instance in list(self.ending.values()):
            await self._end(instance)

    async def _launch(self, slot: Slot) -> None:
        if slot.doubt_since is not None:
            return  # the sweep will tell
        self.calls += 1
        try:
            made = await self._provider.launch(self._request(slot.token))
        except Uncertain:
            slot.doubt_since = self._now()
        except Transient:
            return  # surely without effect: the same name can be used
        except ProviderError:
            self._replace(slot)
        else:
            slot.held = made

    async def _look(self, slot: Slot, held: Instance) -> None:
        self.calls += 1
        try:
            slot.held = await self._provider.get(held)
        except NotFound:
            self.told_gone.add(slot.token)
            self._replace(slot)
        except ProviderError:
            return
        else:
            if slot.held.state is InstanceState.GONE:
                self.told_gone.add(slot.token)
            if slot.held.state is InstanceState.GONE or slot.held.state in _BROKEN:
                self._replace(slot)

    async def _end(self, instance: Instance) -> None:
        self.calls += 2
        try:
            if (await self._provider.get(instance)).state is not InstanceState.GONE:
                await self._provider.terminate(instance)
                return
        except NotFound:
            pass
        except ProviderError:
            return
        del self.ending[instance.id]
        self.told_gone.add(instance.token)

    async def sweep(self) -> None:
        """List, adopt what is in doubt, and end what is not wanted."""
        self.calls += 1
        asked_at = self._now()
        try:
            listed = await self._provider.list()
        except ProviderError:
            return
        there = sorted(
            (one for one in listed if one.state is not InstanceState.GONE),
            key=lambda one: (one.launched_at is None, one.launched_at, one.id),
        )
        for instance in there:
            self._place(instance)
        for slot in [*self.slots, *self._unwanted]:
            if slot.doubt_since is not None and asked_at - slot.doubt_since >= self._doubt:
                slot.doubt_since = None  # it was not made
        self._unwanted = [slot for slot in self._unwanted if slot.doubt_since is not None]

    def _place(self, instance: Instance) -> None:
        """Adopt a machine, or else end it."""
        slot = next((slot for slot in self.slots if slot.token == instance.token), None)
        if slot is not None and slot.held is None and instance.id not in self.ending:
            slot.held, slot.doubt_since = instance, None
        elif slot is None or slot.held is None or slot.held.id != instance.id:
            self.ending[instance.id] = instance

    def _replace(self, slot: Slot) -> None:
        self.slots.remove(slot)
        self._give_up(slot)
        self.want_one_more()

    def _give_up(self, slot: Slot) -> None:
        if slot.held is not None:
            self.ending[slot.held.id] = slot.held
        elif slot.doubt_since is not None:
            self._unwanted.append(slot)


def _runs(instance: Instance | None) -> bool:
    return instance is not None and instance.state is InstanceState.RUNNING
