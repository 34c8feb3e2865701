"""The steps that speak with a cloud: rent, find, end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from secrets import choice
from typing import Any, Protocol

import structlog

from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.cooldowns import RETRY_TRANSIENT_S, Cooldowns
from meshd.daemon.machines.launch_queue import CallRate, CallRates
from meshd.daemon.machines.lookup import MachineLookup, handle
from meshd.errors import (
    AuthFailed,
    ConfigError,
    InvalidRequest,
    NotFound,
    ProviderError,
    RateLimited,
    TailnetError,
    Transient,
    Uncertain,
)
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.ids import UNIQUE_ALPHABET, UNIQUE_LENGTH, MachineName, PoolName, SlotName, machine_name
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.plan import Adopt, AdoptOrphan, AskCloud, Launch, RequestMachine, Terminate, TerminateOrphan
from meshd.plan import provider_capabilities
from meshd.plan.placement import cooldown_of
from meshd.plan.prices import price_words
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Instance, LaunchRequest, Provider
from meshd.store.join_tokens import JoinTokens

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UserData:
    """The user data of a machine.

    Attributes:
        auth_key_sha256: of the tailnet auth key in it.
        own_key: that key is for this machine alone.
    """

    text: str = field(repr=False)
    auth_key_sha256: str = ""
    own_key: bool = False


class UserDataSource(Protocol):
    """Makes the user data of a machine."""

    async def user_data(self, machine: Machine) -> UserData:
        """Stage 1 for this machine: with the auth key and its join token.

        Raises:
            TailnetError: there is no auth key to be had.
            ConfigError: its file cannot be read.
        """
        ...

    def own_key(self, provider: str) -> bool:
        """Whether a provider's machines have keys of their own, and keep none."""
        ...


def new_unique() -> str:
    """A random ending that makes a machine's name unique."""
    return "".join(choice(UNIQUE_ALPHABET) for _ in range(UNIQUE_LENGTH))


class CloudSteps:
    """Carries out the steps about rented machines. Every method leaves the journal saying what is known."""

    def __init__(
        self,
        cluster: str,
        machine_store: MachineStore,
        providers: Mapping[str, Provider],
        user_data: UserDataSource,
        live: LiveSettings,
        list_again: Callable[[str], None],
        at_work: Callable[[Machine], Awaitable[str]],
    ) -> None:
        self._cluster = cluster
        self._machine_store = machine_store
        self._providers = providers
        self._user_data = user_data
        self._live = live
        self._list_again = list_again
        self._at_work = at_work
        self._cooldowns = Cooldowns(machine_store, live)
        self._lookup = MachineLookup(machine_store, self._cooldowns, self._known)
        self.rates = CallRates(self._spacing_s)

    def _spacing_s(self, name: str) -> float:
        provider = self._providers.get(name)
        return provider.capabilities.launch_spacing_s if provider is not None else 0.0

    def paused_s(self, name: str) -> float:
        """Seconds until a provider wants to be asked again."""
        now = self._machine_store.now()
        cooldown = self._machine_store.journal.last_cooldown(CooldownKey.of_provider(name))
        paused = cooldown is not None and cooldown.cause is CooldownCause.PAUSE
        return max(0.0, (cooldown.until - now).total_seconds()) if cooldown is not None and paused else 0.0

    async def request(self, step: RequestMachine) -> None:
        """Write a new machine down."""
        now = self._machine_store.now()
        name = machine_name(self._cluster, step.subject, new_unique())
        self._machine_store.new(
            Machine(
                name=name, pool=PoolName(step.pool), slot=SlotName(step.subject), provider=step.offer.provider,
                offer=step.offer, phase=Phase.REQUESTED, phase_since=now, created_at=now, reason=step.reason,
                region=step.offer.region, by_queue=step.by_queue, for_jobs=step.for_jobs, gang=step.gang,
            ),
            f"{step.reason}; {price_words(step.offer)}",
        )  # fmt: skip

    async def launch(self, step: Launch) -> None:
        """Rent the machine. The journal says LAUNCHING before the call goes out.

        A machine that is already LAUNCHING has a call without a clear answer; this call repeats it.

        Raises:
            TailnetError: there is no auth key for a call that is repeated.
            ConfigError: its file cannot be read.
        """
        machine = self._machine_store.get(step.subject)
        unclear = machine.phase is Phase.LAUNCHING
        provider = self._providers.get(machine.provider)
        why = self._not_now(machine)
        if why or provider is None:
            if not unclear:
                self._machine_store.move(machine.name, Phase.GONE, f"nothing was rented: {why}")
            return
        try:
            user_data = await self._user_data.user_data(machine)
        except (TailnetError, ConfigError) as error:
            if unclear:
                raise
            words = f"no auth key for new machines: {error}"
            self._machine_store.paused(CooldownKey.of_pool(machine.pool), RETRY_TRANSIENT_S, words, fault=False)
            self._machine_store.move(machine.name, Phase.GONE, f"nothing was rented: {error}", failure=str(error))
            return
        can = provider.capabilities
        if too_large := provider_capabilities.user_data_refusal(user_data.text, machine.provider, can):
            self._refuse_to_send(machine, too_large)
            return
        asked = self._asked(machine, user_data)
        tags = {CLUSTER_TAG: self._cluster, MACHINE_TAG: asked.name, "meshd-slot": asked.slot}
        request = LaunchRequest(
            token=asked.name, cluster=self._cluster, offer=asked.offer, user_data=user_data.text,
            tags=tags if can.tags else {},
        )  # fmt: skip
        rate, sent_s = self.rates.of_launch(machine), self._machine_store.clock.monotonic_s()
        try:
            instance = await provider.launch(request)
        except ProviderError as error:
            self._learn_rate(rate, sent_s, error)
            if unclear:
                self._repeat_failed(machine, error)
            else:
                self._launch_failed(asked, error)
            return
        finally:
            self._list_again(machine.provider)
        rate.taken(sent_s)
        self._launched(asked, instance, f"{machine.provider} accepted it")

    def _learn_rate(self, rate: CallRate, sent_s: float, error: ProviderError) -> None:
        """Learn how fast the cloud takes orders. It took a call that it refused for any other reason than the rate."""
        if isinstance(error, RateLimited):
            rate.refused(sent_s, self._machine_store.clock.monotonic_s(), error.retry_after_s)
        elif not isinstance(error, Transient):
            rate.taken(sent_s)

    def _refuse_to_send(self, machine: Machine, why: str) -> None:
        """Send nothing: none of this provider's offers would take it. An unclear call stays unclear."""
        self._cooldowns.unsendable(machine, why)
        if machine.phase is Phase.REQUESTED:
            self._machine_store.move(
                machine.name, Phase.GONE, f"nothing was rented: {why}", failure=why, refusal=InvalidRequest.kind,
                vendor_words=why,
            )  # fmt: skip

    def _asked(self, machine: Machine, user_data: UserData) -> Machine:
        """Write down that the call goes out now."""
        now = self._machine_store.now()
        changes: dict[str, Any] = {
            "launch_attempts": machine.launch_attempts + 1, "launch_called_at": now,
            "auth_key": user_data.auth_key_sha256, "own_key": user_data.own_key,
        }  # fmt: skip
        text = f"asking {machine.provider} for {machine.offer.instance_type}"
        if machine.phase is Phase.LAUNCHING:
            return self._machine_store.change(
                machine.name,
                EventKind.ASKED,
                f"{text} with the same name again",
                **changes,
                create_repeated_at=self._machine_store.now(),
            )
        return self._machine_store.move(machine.name, Phase.LAUNCHING, text, **changes)

    def _launched(self, machine: Machine, instance: Instance, reason: str) -> None:
        self._machine_store.move(
            machine.name, Phase.BOOTING, reason, instance_id=instance.id, region=instance.region or machine.region,
            public_ip=instance.public_ip, launched_at=instance.launched_at or machine.launch_called_at, refusal="",
        )  # fmt: skip
        offer, provider = CooldownKey.of_offer(machine.offer), CooldownKey.of_provider(machine.provider)
        self._machine_store.proved(offer, provider, causes={CooldownCause.REFUSED, CooldownCause.PAUSE})

    def _launch_failed(self, machine: Machine, error: ProviderError) -> None:
        """One way out for each kind of refusal."""
        words = error.vendor_text
        if isinstance(error, Uncertain):
            self._unclear(machine, words)
            return
        if isinstance(error, RateLimited) and not error.retry_after_s:
            self._queue_again(machine, f"asked again at the pace that {machine.provider} takes: {words}")
            return
        cooldown = self._cooldowns.refused(machine, error)
        if cooldown.cause is CooldownCause.PAUSE:
            wait_s = (cooldown.until - self._machine_store.now()).total_seconds()
            self._queue_again(machine, f"asked again in {wait_s:.0f} s: {words}")
            return
        self._machine_store.move(
            machine.name, Phase.GONE, f"nothing was rented: {error}", failure=str(error), refusal=error.kind,
            vendor_words=words,
        )  # fmt: skip

    def _queue_again(self, machine: Machine, reason: str) -> None:
        """The cloud did nothing and nothing is wrong: the order keeps its name and its place in the queue."""
        attempts = machine.launch_attempts - 1
        self._machine_store.move(machine.name, Phase.REQUESTED, reason, launch_attempts=attempts)

    def _repeat_failed(self, before: Machine, error: ProviderError) -> None:
        """A clear refusal of the repeated call says nothing about the earlier one, which stays unclear."""
        words = error.vendor_text
        if isinstance(error, Uncertain):
            self._unclear(before, words)
            return
        cooldown = self._cooldowns.refused(before, error)
        refusal = "" if cooldown.cause is CooldownCause.PAUSE else error.kind
        self._machine_store.change(
            before.name, EventKind.REFUSED, f"refused, and whether the call before made it is unclear: {words}",
            launch_attempts=before.launch_attempts, launch_called_at=before.launch_called_at, refusal=refusal,
            vendor_words=words,
        )  # fmt: skip

    def _unclear(self, machine: Machine, words: str) -> None:
        text = f"the create call's outcome is unclear: {words}"
        self._machine_store.change(
            machine.name, EventKind.UNCLEAR, text, vendor_words=words, create_unclear_at=self._machine_store.now()
        )

    async def ask(self, step: AskCloud) -> None:
        """See MachineLookup."""
        await self._lookup.ask(step)

    def failed(self, machine: Machine, cause: FailureCause, words: str) -> None:
        """Set the cooldown that a clear failure calls for. It is safe to repeat, so it comes before the entry."""
        self._cooldowns.failed(machine, cause, words)

    async def adopt(self, step: Adopt) -> None:
        """The instance is what our unclear create call made."""
        machine = self._machine_store.get(step.subject)
        if machine.phase is Phase.LAUNCHING:
            self._launched(machine, step.instance, step.reason)
        else:
            self._machine_store.change(
                machine.name, EventKind.ADOPTED, step.reason, instance_id=step.instance.id,
                region=step.instance.region or machine.region,
            )  # fmt: skip

    async def terminate(self, step: Terminate) -> None:
        """Ask the cloud to end the machine; its listing shows when it did."""
        machine = self._machine_store.get(step.subject)
        if why := await self._at_work(machine):
            log.warning("not_ended", machine=machine.name, reason=why)
            return
        await self._terminate(machine.provider, handle(machine))
        self._machine_store.change(
            machine.name, EventKind.TERMINATE_CALLED, f"{machine.provider} was asked to end it: {step.reason}",
            terminate_calls=machine.terminate_calls + 1, terminate_called_at=self._machine_store.now())  # fmt: skip
        self._list_again(machine.provider)

    async def adopt_orphan(self, step: AdoptOrphan) -> None:
        """Write down a machine that the journal had lost.

        Whether it has joined is not known, so its join token is closed: users may be on it, and they can read it. Its
        agent rejoins with its node token. One that is known, and was given up before it joined, may join.
        """
        now, instance = self._machine_store.now(), step.instance
        if self._machine_store.journal.machine(MachineName(instance.token)) is None:
            JoinTokens(self._machine_store.journal).close(instance.token, "the journal had lost the machine", now)
        self._machine_store.new(
            Machine(
                name=MachineName(instance.token), pool=PoolName(step.pool), slot=SlotName(step.slot),
                provider=instance.provider, offer=step.offer, phase=Phase.BOOTING, phase_since=now,
                created_at=now, instance_id=instance.id, region=instance.region,
                launched_at=instance.launched_at or now, launch_called_at=instance.launched_at or now,
                reason=step.reason,
                tailnet_ip=step.tailnet_ip, line_published=bool(step.tailnet_ip),
                own_key=self._user_data.own_key(instance.provider),
            ),
            step.reason,
        )  # fmt: skip

    async def terminate_orphan(self, step: TerminateOrphan) -> None:
        """End an unknown machine, after one more look into the journal."""
        instance = step.instance
        key = (instance.provider, instance.id)
        if any((m.provider, m.instance_id) == key for m in self._machine_store.journal.machines()):
            return
        self._machine_store.journal.event(
            self._machine_store.now(), EventKind.ORPHAN,
            f"{instance.provider} {instance.id} ({instance.token or 'no name'}): {step.reason}; it is ended",
            instance.token,
        )  # fmt: skip
        await self._terminate(instance.provider, instance)
        self._list_again(instance.provider)

    async def _terminate(self, name: str, instance: Instance) -> None:
        rate, clock = self.rates.of("terminate", name, instance.region), self._machine_store.clock
        while (wait_s := rate.wait_s(clock.monotonic_s(), 0) or 0.0) > 0:
            await clock.sleep(wait_s)
        sent_s = clock.monotonic_s()
        rate.sent(sent_s)
        try:
            await self._known(name).terminate(instance)
        except NotFound:
            return  # the listing confirms it
        except ProviderError as error:
            self._learn_rate(rate, sent_s, error)
            raise
        rate.taken(sent_s)

    def _known(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            raise AuthFailed(
                f"providers.{name} is no longer enabled: enable it, or end its machines by hand", provider=name
            )
        return provider

    def _not_now(self, machine: Machine) -> str:
        """Why the order is not sent: what was learned, or said, while it waited for its turn."""
        if machine.provider not in self._providers:
            return f"providers.{machine.provider} is no longer enabled"
        if machine.removal:
            return "it is no longer wanted"
        now = self._machine_store.now()
        cooldown = cooldown_of(machine.offer, self._machine_store.journal.cooldowns(now), now, machine.pool)
        return f"{cooldown.key.words} is left alone: {cooldown.reason}" if cooldown else ""
