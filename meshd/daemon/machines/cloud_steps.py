"""The steps that speak with a cloud: rent, find, end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from secrets import choice

import structlog

from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.boot_images import NO_IMAGES, BootImages
from meshd.daemon.machines.cooldowns import Cooldowns
from meshd.daemon.machines.create_calls import CreateCalls, UserDataSource
from meshd.daemon.machines.launch_queue import CallRates
from meshd.daemon.machines.lookup import MachineLookup, handle
from meshd.errors import (
    AuthFailed,
    NotFound,
    ProviderError,
    RateLimited,
    Transient,
)
from meshd.gang_id import gang_id
from meshd.model.cooldown import CooldownCause, CooldownKey
from meshd.model.freeze import Freeze
from meshd.model.ids import UNIQUE_ALPHABET, UNIQUE_LENGTH, MachineName, PoolName, SlotName, machine_name
from meshd.model.machine import HOLDS_SLOT, FailureCause, Machine, Phase
from meshd.model.plan import Adopt, AdoptOrphan, AskCloud, Launch, RequestMachine, Terminate, TerminateOrphan
from meshd.plan.prices import price_words
from meshd.provider_api import Instance, Provider
from meshd.store.join_tokens import JoinTokens

log = structlog.get_logger(__name__)


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
        images: BootImages = NO_IMAGES,
        freeze: Callable[[], Freeze | None] = lambda: None,
    ) -> None:
        self._freeze = freeze
        self._cluster = cluster
        self._machine_store = machine_store
        self._providers = providers
        self._user_data = user_data
        self._live = live
        self._list_again = list_again
        self._at_work = at_work
        self._cooldowns = Cooldowns(machine_store, live, images)
        self._lookup = MachineLookup(machine_store, self._cooldowns, self._known)
        self.rates = CallRates(self._spacing_s)
        self._create_calls = CreateCalls(
            cluster,
            machine_store,
            providers,
            user_data,
            self._cooldowns,
            self.rates,
            list_again,
            images,
            freeze,
        )

    def _spacing_s(self, name: str) -> float:
        provider = self._providers.get(name)
        return provider.capabilities.launch_spacing_s if provider is not None else 0.0

    def paused_s(self, name: str) -> float:
        """Seconds until a provider wants to be asked again."""
        now = self._machine_store.now()
        cooldown = self._machine_store.journal.last_cooldown(CooldownKey.of_provider(name))
        paused = cooldown is not None and cooldown.cause is CooldownCause.PAUSE
        return max(0.0, (cooldown.until - now).total_seconds()) if cooldown is not None and paused else 0.0

    def request(self, steps: Sequence[RequestMachine]) -> None:
        """Write new machines down, in one write. Those of a gang have one ending, and the gang's id."""
        now = self._machine_store.now()
        calls: dict[tuple[str, str], list[RequestMachine]] = {}
        for step in steps:
            calls.setdefault((step.pool, step.gang or step.subject), []).append(step)
        with self._machine_store.journal.together():
            for together in calls.values():
                unique = new_unique()
                names = [machine_name(self._cluster, step.subject, unique) for step in together]
                gang = gang_id(names) if len(names) > 1 else ""
                for step, name in zip(together, names, strict=True):
                    self._machine_store.new(
                        Machine(
                            name=name, pool=PoolName(step.pool), slot=SlotName(step.subject),
                            provider=step.offer.provider, offer=step.offer, phase=Phase.REQUESTED, phase_since=now,
                            created_at=now, reason=step.reason, region=step.offer.region, by_queue=step.by_queue,
                            for_jobs=step.for_jobs, gang=gang,
                        ),
                        f"{step.reason}; {price_words(step.offer)}",
                    )  # fmt: skip

    async def launch(self, step: Launch) -> None:
        """See CreateCalls."""
        await self._create_calls.launch(step)

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
            self._create_calls.launched(machine, step.instance, step.reason)
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
        if not await self._terminate(machine.provider, handle(machine)):
            return
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
        holder = self._holder_of(step.slot)
        if holder is not None and holder.name != step.heir_of:
            log.warning("not_adopted", machine=instance.token, reason=f"{step.slot} is {holder.name}'s by now")
            return
        before = self._machine_store.journal.machine(MachineName(instance.token))
        if before is None:
            JoinTokens(self._machine_store.journal).close(instance.token, "the journal had lost the machine", now)
        adopted = Machine(
            name=MachineName(instance.token), pool=PoolName(step.pool), slot=SlotName(step.slot),
            provider=instance.provider, offer=step.offer, phase=Phase.BOOTING, phase_since=now,
            created_at=now, instance_id=instance.id, region=instance.region,
            # By a head's clock that is behind its cloud's, it was launched in the future.
            launched_at=instance.launched_at or now, launch_called_at=min(instance.launched_at or now, now),
            reason=step.reason,
            tailnet_ip=step.tailnet_ip, line_published=bool(step.tailnet_ip),
            own_key=self._user_data.own_key(instance.provider), gang=before.gang if before is not None else "",
            by_queue=step.by_queue,
            # Its slot's line may change from the former machine's address to its own while a job runs.
            former_ips=(holder.tailnet_ip,) if holder is not None and holder.tailnet_ip else (),
        )  # fmt: skip
        with self._machine_store.journal.together():
            if holder is not None:
                # The slot, with its node and its jobs, is the heir's: nothing of it is drained or set down.
                to = Phase.GONE if holder.phase is Phase.REQUESTED else Phase.TERMINATING
                why = f"its slot has {adopted.name} by now"
                self._machine_store.move(holder.name, to, why, left_slurm=to is Phase.TERMINATING)
            self._machine_store.new(adopted, step.reason)

    def _holder_of(self, slot: str) -> Machine | None:
        """The machine whose slot it is. The journal is written at once, so no other gets it in between."""
        machines = self._machine_store.journal.machines()
        return next((m for m in machines if m.slot == slot and m.phase in HOLDS_SLOT), None)

    async def terminate_orphan(self, step: TerminateOrphan) -> None:
        """End an unknown machine, after one more look into the journal."""
        instance = step.instance
        key = (instance.provider, instance.id)
        if any((m.provider, m.instance_id) == key for m in self._machine_store.journal.machines()) or self._freeze():
            return
        self._machine_store.journal.event(
            self._machine_store.now(), EventKind.ORPHAN,
            f"{instance.provider} {instance.id} ({instance.token or 'no name'}): {step.reason}; it is ended",
            instance.token,
        )  # fmt: skip
        await self._terminate(instance.provider, instance)
        self._list_again(instance.provider)

    async def _terminate(self, name: str, instance: Instance) -> bool:
        """End it; False when it was not, since meshd was frozen while the call waited for its turn."""
        rate, clock = self.rates.of("terminate", name, instance.region), self._machine_store.clock
        while (wait_s := rate.wait_s(clock.monotonic_s(), 0) or 0.0) > 0:
            await clock.sleep(wait_s)
        if (freeze := self._freeze()) is not None:
            log.warning("not_ended", machine=instance.token, reason=freeze.words)
            return False
        sent_s = clock.monotonic_s()
        rate.sent(sent_s)
        try:
            await self._known(name).terminate(instance)
        except NotFound:
            return True  # the listing confirms it
        except ProviderError as error:
            if isinstance(error, RateLimited):
                rate.refused(sent_s, clock.monotonic_s(), error.retry_after_s)
            elif not isinstance(error, Transient):
                rate.taken(sent_s)
            raise
        rate.taken(sent_s)
        return True

    def _known(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            raise AuthFailed(
                f"providers.{name} is no longer enabled: enable it, or end its machines by hand", provider=name
            )
        return provider
