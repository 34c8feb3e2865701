"""Create calls: one for a machine, or one for all machines of a gang. The journal has LAUNCHING before a call goes out.

Whatever becomes of a gang's call becomes of all its machines together: they are made, refused, put back into the queue,
or unclear. Afterwards each goes its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from meshd.codes import EventKind
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.boot_images import NO_IMAGES, BootImages
from meshd.daemon.machines.cooldowns import RETRY_TRANSIENT_S, Cooldowns
from meshd.daemon.machines.launch_queue import CallRate, CallRates
from meshd.errors import ConfigError, InvalidRequest, ProviderError, RateLimited, TailnetError, Transient, Uncertain
from meshd.gang_id import gang_id, gang_machines
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.freeze import Freeze
from meshd.model.ids import MachineName
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Launch
from meshd.plan import provider_capabilities
from meshd.plan.ledger import billed_since
from meshd.plan.placement import cooldown_of
from meshd.provider_api import (
    CLUSTER_TAG,
    GANG_TAG,
    MACHINE_TAG,
    GangLauncher,
    GangRequest,
    ImageId,
    Instance,
    LaunchRequest,
    Provider,
)


@dataclass(frozen=True, slots=True)
class UserData:
    """The user data of a machine, or of all machines of a gang.

    Attributes:
        auth_key_sha256: of the tailnet auth key in it.
        own_key: that key is for these machines alone.
    """

    text: str = field(repr=False)
    auth_key_sha256: str = ""
    own_key: bool = False


class UserDataSource(Protocol):
    """Makes the user data of a machine."""

    async def user_data(self, machine: Machine) -> UserData:
        """Stage 1 for this machine: with the auth key and its join token. Where it has a gang, for all of that.

        Raises:
            TailnetError: there is no auth key to be had.
            ConfigError: its file cannot be read.
        """
        ...

    def own_key(self, provider: str) -> bool:
        """Whether a provider's machines have keys of their own, and keep none."""
        ...


class CreateCalls:
    """Makes them. Every method leaves the journal saying what is known.

    Args:
        cluster: its name.
        machine_store: the machines.
        providers: the enabled ones.
        user_data: makes each machine's user data.
        cooldowns: writes down what is left alone after a refusal.
        rates: how fast each cloud takes calls.
        list_again: has a provider's machines listed soon.
        images: says from which image a machine boots.
        freeze: the freeze that holds; None for none.
    """

    def __init__(
        self,
        cluster: str,
        machine_store: MachineStore,
        providers: Mapping[str, Provider],
        user_data: UserDataSource,
        cooldowns: Cooldowns,
        rates: CallRates,
        list_again: Callable[[str], None],
        images: BootImages = NO_IMAGES,
        freeze: Callable[[], Freeze | None] = lambda: None,
    ) -> None:
        self._freeze = freeze
        self._cluster = cluster
        self._machine_store = machine_store
        self._providers = providers
        self._user_data = user_data
        self._cooldowns = cooldowns
        self._rates = rates
        self._list_again = list_again
        self._images = images

    async def launch(self, step: Launch) -> None:
        """Rent the machines of the step with one call.

        Machines that are already LAUNCHING have a call without a clear answer; this call repeats it.

        Raises:
            TailnetError: there is no auth key for a call that is repeated.
            ConfigError: its file cannot be read.
        """
        machines = [self._machine_store.get(name) for name in step.machines]
        unclear = machines[0].phase is Phase.LAUNCHING
        machines = self._wanted(machines, unclear=unclear)
        provider = self._providers.get(machines[0].provider) if machines else None
        if provider is None:
            return
        for order in self._orders(machines, provider, unclear=unclear):
            await self._order(order, provider, unclear=unclear)

    def _wanted(self, machines: Sequence[Machine], *, unclear: bool) -> list[Machine]:
        """Those whose call may go out now; the others of a first call are given up."""
        whys = {machine.name: self._not_now(machine) for machine in machines}
        if not unclear:
            self._move_all(
                {m.name: f"nothing was rented: {whys[m.name]}" for m in machines if whys[m.name]}, Phase.GONE
            )  # fmt: skip
        elif any(whys.values()):
            return []
        return [machine for machine in machines if not whys[machine.name]]

    def _orders(self, machines: list[Machine], provider: Provider, *, unclear: bool) -> list[list[Machine]]:
        """The machines by call. A call that is repeated is for the same gang; a first one is for those that are left.

        A gang that lost a machine while it waited is another gang: a cloud must not take it for the one before.
        """
        if unclear:
            return [machines]
        gang = gang_id([m.name for m in machines]) if len(machines) > 1 and isinstance(provider, GangLauncher) else ""
        if gang:
            return [[replace(machine, gang=gang) for machine in machines]]
        return [[replace(machine, gang="")] for machine in machines]

    async def _order(self, machines: Sequence[Machine], provider: Provider, *, unclear: bool) -> None:
        first, can = machines[0], provider.capabilities
        try:
            user_data = await self._user_data.user_data(first)
        except (TailnetError, ConfigError) as error:
            if unclear:
                raise
            words = f"no auth key for new machines: {error}"
            self._machine_store.paused(CooldownKey.of_pool(first.pool), RETRY_TRANSIENT_S, words, fault=False)
            said = {machine.name: f"nothing was rented: {error}" for machine in machines}
            self._move_all(said, Phase.GONE, failure=str(error))
            return
        if (freeze := self._freeze()) is not None:  # since the key was asked for
            if not unclear:
                self._move_all({m.name: f"nothing was rented: {freeze.words}" for m in machines}, Phase.GONE)
            return
        if too_large := provider_capabilities.user_data_refusal(user_data.text, first.provider, can):
            self._refuse_to_send(machines, too_large)
            return
        asked = self._asked(machines, user_data)
        rate, sent_s = self._rates.of_launch(first), self._machine_store.clock.monotonic_s()
        try:
            made = await self._call(asked, provider, user_data.text)
        except ProviderError as error:
            self._learn_rate(rate, sent_s, error)
            if unclear:
                self._repeat_failed(machines, error)
            else:
                self._launch_failed(asked, error)
            return
        finally:
            self._list_again(first.provider)
        rate.taken(sent_s)
        with self._machine_store.journal.together():
            for machine in asked:
                self.launched(machine, made[machine.name], f"{machine.provider} accepted it")

    async def _call(self, machines: Sequence[Machine], provider: Provider, user_data: str) -> dict[str, Instance]:
        """The instances by the machines' names.

        Raises:
            Uncertain: the answer lacks some, or does not fit the request. The listings then show what was made.
        """
        first, can_tag = machines[0], provider.capabilities.tags
        if not first.gang:
            tags = {CLUSTER_TAG: self._cluster, MACHINE_TAG: first.name, "meshd-slot": first.slot}
            request = LaunchRequest(
                token=first.name, cluster=self._cluster, offer=first.offer, user_data=user_data,
                tags=tags if can_tag else {}, image=ImageId(first.image), keep_off=first.baking,
            )  # fmt: skip
            return self._checked(machines, [await provider.launch(request)])
        if not isinstance(provider, GangLauncher):  # the same call cannot be made again: the listings settle it
            text = "the provider does not rent gangs any more"
            raise Uncertain(text, provider=first.provider, operation="launch")
        tags = {CLUSTER_TAG: self._cluster, GANG_TAG: first.gang}
        names = gang_machines(first.gang)
        gang = GangRequest(
            first.gang, names, self._cluster, first.offer, user_data, tags if can_tag else {}, ImageId(first.image)
        )
        return self._checked(machines, await provider.launch_gang(gang))

    def _checked(self, machines: Sequence[Machine], answer: Sequence[Instance]) -> dict[str, Instance]:
        """The instances of an answer by the machines' names.

        An instance is one machine's alone: who ends a machine must not end another one's instance.

        Raises:
            Uncertain: as `_call`.
        """
        named = {instance.token: instance for instance in answer}
        if len(answer) == 1 and not answer[0].token:
            named = {machines[0].name: answer[0]}
        made: dict[str, Instance] = {machine.name: named[machine.name] for machine in machines if machine.name in named}
        provider, journal = machines[0].provider, self._machine_store.journal
        others = sorted(one.id for one in made.values() if journal.knows_instance(provider, one.id))
        text = ""
        if len(made) < len(machines):
            text = f"the answer has {len(made)} of {len(machines)} machines"
        elif len({instance.id for instance in answer}) < len(answer):
            text = "the answer has one instance under several names"
        elif others:
            text = f"the answer has {others[0]}, which is another machine's"
        if text:
            raise Uncertain(text, provider=provider, operation="launch")
        return made

    def _learn_rate(self, rate: CallRate, sent_s: float, error: ProviderError) -> None:
        """Learn how fast the cloud takes orders. It took a call that it refused for any other reason than the rate."""
        if isinstance(error, RateLimited):
            rate.refused(sent_s, self._machine_store.clock.monotonic_s(), error.retry_after_s)
        elif not isinstance(error, Transient):
            rate.taken(sent_s)

    def _refuse_to_send(self, machines: Sequence[Machine], why: str) -> None:
        """Send nothing: none of this provider's offers would take it. An unclear call stays unclear."""
        self._cooldowns.unsendable(machines[0], why)
        said = {m.name: f"nothing was rented: {why}" for m in machines if m.phase is Phase.REQUESTED}
        self._move_all(said, Phase.GONE, failure=why, refusal=InvalidRequest.kind, vendor_words=why)

    def _move_all(self, said: Mapping[MachineName, str], to: Phase, **changes: Any) -> None:
        """Move machines, each with a reason, in one write."""
        if not said:
            return
        with self._machine_store.journal.together():
            for name, reason in said.items():
                self._machine_store.move(name, to, reason, **changes)

    def _asked(self, machines: Sequence[Machine], user_data: UserData) -> list[Machine]:
        """Write down that the call goes out now."""
        now, first = self._machine_store.now(), machines[0]
        text = f"asking {first.provider} for {first.offer.instance_type}"
        text += f", one of {len(gang_machines(first.gang))} in one call" if first.gang else ""
        # A call that is repeated says the same again.
        unclear = first.phase is Phase.LAUNCHING
        image = first.image if unclear else "" if first.baking else self._images.image_for(first.offer)
        changed: list[Machine] = []
        with self._machine_store.journal.together():
            for machine in machines:
                changes: dict[str, Any] = {
                    "launch_attempts": machine.launch_attempts + 1, "launch_called_at": now, "gang": machine.gang,
                    "auth_key": user_data.auth_key_sha256, "own_key": user_data.own_key, "image": image,
                }  # fmt: skip
                if machine.phase is Phase.LAUNCHING:
                    before = machine.launch_first_called_at or machine.launch_called_at
                    again = f"{text}, with the same name again"
                    changed.append(
                        self._machine_store.change(
                            machine.name, EventKind.ASKED, again, **changes, create_repeated_at=now,
                            launch_first_called_at=before,
                        )
                    )  # fmt: skip
                else:
                    changes["launch_first_called_at"] = now
                    changed.append(self._machine_store.move(machine.name, Phase.LAUNCHING, text, **changes))
        return changed

    def launched(self, machine: Machine, instance: Instance, reason: str) -> None:
        """Write down what the cloud made. Where it tells no launch time, the first call may have made it."""
        self._machine_store.move(
            machine.name, Phase.BOOTING, reason, instance_id=instance.id, region=instance.region or machine.region,
            public_ip=instance.public_ip, refusal="",
            launched_at=instance.launched_at or billed_since(machine),
        )  # fmt: skip
        offer, provider = CooldownKey.of_offer(machine.offer), CooldownKey.of_provider(machine.provider)
        self._machine_store.proved(offer, provider, causes={CooldownCause.REFUSED, CooldownCause.PAUSE})

    def _launch_failed(self, machines: Sequence[Machine], error: ProviderError) -> None:
        """One way out for each kind of refusal."""
        first, words = machines[0], error.vendor_text
        if isinstance(error, Uncertain):
            self._unclear(machines, words)
            return
        if isinstance(error, RateLimited) and not error.retry_after_s:
            self._queue_again(machines, f"asked again at the pace that {first.provider} takes: {words}")
            return
        cooldown = self._cooldowns.refused(first, error, parts=bool(first.gang) and not first.by_queue)
        if cooldown.cause is CooldownCause.PAUSE:
            wait_s = (cooldown.until - self._machine_store.now()).total_seconds()
            self._queue_again(machines, f"asked again in {wait_s:.0f} s: {words}")
            return
        said = {machine.name: f"nothing was rented: {error}" for machine in machines}
        self._move_all(said, Phase.GONE, failure=str(error), refusal=error.kind, vendor_words=words)

    def _queue_again(self, machines: Sequence[Machine], reason: str) -> None:
        """The cloud did nothing and nothing is wrong: the order keeps its names and its place in the queue."""
        with self._machine_store.journal.together():
            for machine in machines:
                attempts = machine.launch_attempts - 1
                self._machine_store.move(machine.name, Phase.REQUESTED, reason, launch_attempts=attempts)

    def _repeat_failed(self, before: Sequence[Machine], error: ProviderError) -> None:
        """A clear refusal of the repeated call says nothing about the earlier one, which stays unclear."""
        words = error.vendor_text
        if isinstance(error, Uncertain):
            self._unclear(before, words)
            return
        cooldown = self._cooldowns.refused(before[0], error)
        refusal = "" if cooldown.cause is CooldownCause.PAUSE else error.kind
        text = f"refused, and whether the call before made it is unclear: {words}"
        with self._machine_store.journal.together():
            for machine in before:
                self._machine_store.change(
                    machine.name, EventKind.REFUSED, text, launch_attempts=machine.launch_attempts,
                    launch_called_at=machine.launch_called_at, refusal=refusal, vendor_words=words,
                )  # fmt: skip

    def _unclear(self, machines: Sequence[Machine], words: str) -> None:
        text, at = f"the create call's outcome is unclear: {words}", self._machine_store.now()
        with self._machine_store.journal.together():
            for machine in machines:
                self._machine_store.change(
                    machine.name, EventKind.UNCLEAR, text, vendor_words=words, create_unclear_at=at
                )  # fmt: skip

    def _not_now(self, machine: Machine) -> str:
        """Why the order is not sent: what was learned, or said, while it waited for its turn."""
        if (freeze := self._freeze()) is not None:
            return freeze.words
        if machine.provider not in self._providers:
            return f"providers.{machine.provider} is no longer enabled"
        if machine.removal:
            return "it is no longer wanted"
        now = self._machine_store.now()
        cooldown = cooldown_of(machine.offer, self._machine_store.journal.cooldowns(now), now, machine.pool)
        return f"{cooldown.key.words} is left alone: {cooldown.reason}" if cooldown else ""
