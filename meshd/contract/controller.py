"""A reference controller: a small version of what meshd does with an adapter.

It relies on the contract alone. When a launch is unclear, it looks for the machine by name until lists can be trusted,
and only then gives the name up. It repeats `terminate` until the machine is gone, and ends every machine in a list that
is not wanted. An adapter under which it leaks or doubles machines breaks the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.errors import NotFound, ProviderError, Transient, Uncertain
from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, Provider

#: States of a machine that will never run again, though it may still cost money.
_BROKEN = frozenset({InstanceState.STOPPED, InstanceState.PREEMPTED, InstanceState.FAILED})


@dataclass(slots=True)
class WantedMachine:
    """One machine that is wanted. Its name is used for this machine only.

    Attributes:
        instance: the machine; None while there is none.
        unclear_since: when a launch got no clear answer; None when none is unclear.
    """

    token: str
    instance: Instance | None = None
    unclear_since: datetime | None = None


class ReferenceController:
    """Keeps the wanted machines running.

    Attributes:
        wanted: the machines that are wanted.
        ending: the machines that are being ended.
        reported_gone: names of machines that the adapter called gone.
        calls: how many calls were made.

    Args:
        provider: the adapter.
        request: returns the launch request for a name.
        now: UTC clock.
        settle_s: a machine that a list does not show this many seconds after the launch was not made.
    """

    def __init__(
        self, provider: Provider, request: Callable[[str], LaunchRequest], now: Callable[[], datetime], settle_s: float
    ) -> None:
        self.wanted: list[WantedMachine] = []
        self.ending: dict[InstanceId, Instance] = {}
        self.reported_gone: set[str] = set()
        self.calls = 0
        self._provider = provider
        self._request = request
        self._now = now
        self._settle = timedelta(seconds=settle_s)
        self._unclear_unwanted: list[WantedMachine] = []
        self._names = 0

    @property
    def settled(self) -> bool:
        """Every wanted machine runs, and there is no other."""
        return not self.ending and not self._unclear_unwanted and all(_runs(one.instance) for one in self.wanted)

    def want_one_more(self) -> None:
        """Add a wanted machine."""
        self._names += 1
        self.wanted.append(WantedMachine(f"lab-contract-{self._names}-abcdef"))

    def want_one_less(self, index: int) -> None:
        """Remove the wanted machine at this index."""
        self._give_up(self.wanted.pop(index))

    async def step(self) -> None:
        """Make one step for each machine."""
        for one in list(self.wanted):
            await (self._launch(one) if one.instance is None else self._observe(one, one.instance))
        for instance in list(self.ending.values()):
            await self._end(instance)

    async def _launch(self, one: WantedMachine) -> None:
        if one.unclear_since is not None:
            return  # `sweep` settles it
        self.calls += 1
        try:
            made = await self._provider.launch(self._request(one.token))
        except Uncertain:
            one.unclear_since = self._now()
        except Transient:
            return  # it had no effect: the same name can be used again
        except ProviderError:
            self._replace(one)
        else:
            one.instance = made

    async def _observe(self, one: WantedMachine, instance: Instance) -> None:
        self.calls += 1
        try:
            one.instance = await self._provider.get(instance)
        except NotFound:
            self.reported_gone.add(one.token)
            self._replace(one)
        except ProviderError:
            return
        else:
            if one.instance.state is InstanceState.GONE:
                self.reported_gone.add(one.token)
            if one.instance.state is InstanceState.GONE or one.instance.state in _BROKEN:
                self._replace(one)

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
        self.reported_gone.add(instance.token)

    async def sweep(self) -> None:
        """List all machines, adopt those of unclear launches, and end those that are not wanted."""
        self.calls += 1
        asked_at = self._now()
        try:
            listed = await self._provider.list()
        except ProviderError:
            return
        alive = sorted(
            (one for one in listed if one.state is not InstanceState.GONE),
            key=lambda one: (one.launched_at is None, one.launched_at, one.id),
        )
        for instance in alive:
            self._adopt_or_end(instance)
        for one in [*self.wanted, *self._unclear_unwanted]:
            if one.unclear_since is not None and asked_at - one.unclear_since >= self._settle:
                one.unclear_since = None  # it was not made
        self._unclear_unwanted = [one for one in self._unclear_unwanted if one.unclear_since is not None]

    def _adopt_or_end(self, instance: Instance) -> None:
        wanted = next((one for one in self.wanted if one.token == instance.token), None)
        if wanted is not None and wanted.instance is None and instance.id not in self.ending:
            wanted.instance, wanted.unclear_since = instance, None
        elif wanted is None or wanted.instance is None or wanted.instance.id != instance.id:
            self.ending[instance.id] = instance

    def _replace(self, one: WantedMachine) -> None:
        self.wanted.remove(one)
        self._give_up(one)
        self.want_one_more()

    def _give_up(self, one: WantedMachine) -> None:
        if one.instance is not None:
            self.ending[one.instance.id] = one.instance
        elif one.unclear_since is not None:
            self._unclear_unwanted.append(one)


def _runs(instance: Instance | None) -> bool:
    return instance is not None and instance.state is InstanceState.RUNNING
