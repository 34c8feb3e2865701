"""One machine: no new jobs for it, jobs again, or give it back."""

from __future__ import annotations

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused, Unknown
from meshd.codes import EventKind, RefusalCode
from meshd.daemon.head_api.names import near_words, pool_of_slot
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.hosts.invitations import Invitations
from meshd.daemon.machines.node_steps import SlurmControl
from meshd.model.host import PROVIDER
from meshd.model.machine import IN_SLURM, Machine, Phase, Removal


class MachineService:
    """Answers DRAIN, UNDRAIN and REMOVE. A machine may be named by its slot.

    Args:
        state: the journal and the last tick.
        slurm: drains and resumes nodes.
        hosts: evicts owned machines.
    """

    def __init__(self, state: HeadState, slurm: SlurmControl, hosts: Invitations) -> None:
        self._state = state
        self._hosts = hosts
        self._slurm = slurm

    def name_of(self, machine_or_slot: str, *, also_gone: bool = False) -> str:
        """The machine's name, also if it is gone; for a slot, the name of its newest machine.

        Args:
            machine_or_slot: as a user wrote it.
            also_gone: a slot may stand for its last machine, although that is gone.

        Raises:
            Unknown: there is none; its cure has similar names.
            Refused: it is a slot without a machine.
        """
        live = [m for m in self._state.journal.machines() if machine_or_slot in {m.name, m.slot}]
        if live:
            return max(live, key=lambda m: m.created_at).name
        if self._state.journal.machine(machine_or_slot) is not None:
            return machine_or_slot
        last = self._state.journal.machines_of_slot(machine_or_slot, 1)
        if last and also_gone:
            return last[0].name
        if last or pool_of_slot(machine_or_slot, self._state.desired()) is not None:
            raise Refused(
                f"slot {machine_or_slot} has no machine now",
                f"see `meshctl explain {machine_or_slot}`",
                code=RefusalCode.SLOT_EMPTY,
            )
        words = near_words(machine_or_slot, self._state.desired(), self._state.journal.machines())
        raise Unknown(f"there is no machine or slot {machine_or_slot}", words, code=RefusalCode.NO_SUCH_MACHINE)

    async def drain(self, request: s.DrainRequest, actor: Actor) -> s.MachineAnswer:
        """Let the node take no new jobs."""
        machine = self._in_slurm(request.machine)
        # meshd resumes only nodes that it drained itself. It knows them by the reason, so this one must differ.
        await self._slurm.drain(machine.slot, f"drained by {actor.user}: {request.reason}".rstrip(": "))
        return self._done(machine, EventKind.DRAIN, f"drained by {actor.user}: {request.reason}".rstrip(": "))

    async def undrain(self, request: s.DrainRequest, actor: Actor) -> s.MachineAnswer:
        """Let the node take jobs again."""
        machine = self._in_slurm(request.machine)
        if machine.phase is Phase.DRAINING:
            raise Refused(
                f"{machine.name} is on its way out: {machine.reason}",
                "scale the pool up to keep it",
                code=RefusalCode.MACHINE_LEAVES,
            )
        await self._slurm.resume(machine.slot)
        return self._done(machine, EventKind.UNDRAIN, f"undrained by {actor.user}: {request.reason}".rstrip(": "))

    async def remove(self, request: s.RemoveRequest, actor: Actor) -> s.MachineAnswer:
        """Give a machine back. A host is evicted: its machine first."""
        if (name := self._host(request.machine)) is not None:
            return self._evict(name, request, actor)
        return self._remove(request, actor)

    def _host(self, word: str) -> str | None:
        """The host that a user means by its own name, or by the machine or slot that it is now."""
        if self._hosts.knows(word):
            return word
        live = [m for m in self._state.journal.machines() if word in {m.name, m.slot} and m.provider == PROVIDER]
        return live[0].offer.instance_type if live and self._hosts.knows(live[0].offer.instance_type) else None

    def _evict(self, name: str, request: s.RemoveRequest, actor: Actor) -> s.MachineAnswer:
        host, text = self._hosts.evict(name, actor, force=request.force, dry_run=request.dry_run)
        self._state.controller.wake()
        machine = next((m for m in self._state.journal.machines() if m.name == host.machine), None)
        if machine is None:
            return s.MachineAnswer(machine=name, slot=host.slot, phase="", text=text)
        answer = self._remove(request.model_copy(update={"machine": machine.name}), actor)
        return answer.model_copy(update={"text": f"{answer.text}; then {name} {text}"})

    def _remove(self, request: s.RemoveRequest, actor: Actor) -> s.MachineAnswer:
        machine = self._machine(request.machine)
        if machine.phase in {Phase.TERMINATING, Phase.LOST}:
            return self._answer(machine, "is already being given back")
        jobs = self._jobs(machine)
        how = "at once, by force" if request.force else "after its jobs"
        warnings = [f"job {', '.join(jobs)} loses the node"] if jobs and request.force else []
        if (freeze := self._state.desired().freeze) is not None:
            warnings.append(f"{freeze.words}: no machine ends before a thaw")
        if request.dry_run:
            return self._answer(machine, f"would be given back {how}", warnings)
        removal = Removal.FORCED if request.force or machine.removal is Removal.FORCED else Removal.BY_USER
        reason = f"removed by {actor.user}, {how}"
        self._state.machine_store.change(machine.name, EventKind.REMOVE, reason, removal=removal, reason=reason)
        self._state.controller.wake()
        return self._answer(self._machine(machine.name), f"will be given back {how}", warnings)

    def _machine(self, machine_or_slot: str) -> Machine:
        machine = self._state.machine_store.get(self.name_of(machine_or_slot))
        if machine.phase is Phase.GONE:
            raise Refused(
                f"{machine.name} is gone since {machine.gone_at:%Y-%m-%d %H:%M:%S} UTC",
                "see `meshctl nodes`",
                code=RefusalCode.MACHINE_GONE,
            )
        return machine

    def _in_slurm(self, machine_or_slot: str) -> Machine:
        machine = self._machine(machine_or_slot)
        if machine.phase not in IN_SLURM:
            raise Refused(
                f"{machine.name} is {machine.phase.value}: it is not in Slurm",
                "see `meshctl nodes`",
                code=RefusalCode.NOT_IN_SLURM,
            )
        return machine

    def _jobs(self, machine: Machine) -> list[str]:
        slurm = self._state.slurm()
        return list(slurm.jobs_on(machine.slot)) if slurm else []

    def _done(self, machine: Machine, kind: EventKind, text: str) -> s.MachineAnswer:
        self._state.journal.event(self._state.clock.now(), kind, text, machine.name)
        self._state.controller.wake()
        return self._answer(machine, text)

    def _answer(self, machine: Machine, text: str, warnings: list[str] | None = None) -> s.MachineAnswer:
        return s.MachineAnswer(
            machine=machine.name, slot=machine.slot, phase=machine.phase.value, text=text, jobs=self._jobs(machine),
            warnings=warnings or [],
        )  # fmt: skip
