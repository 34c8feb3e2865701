"""What the next step of one machine is. PURE.

One function for each phase: those before READY are in `arriving`, a create call in doubt in `doubt`, those after READY
in `leaving`. Each phase has a deadline and says which way out there is. At most one step a machine and tick: whatever
was done, the next tick looks again.
"""

from __future__ import annotations

from collections.abc import Callable

from meshd.model.failure import FailureCause
from meshd.model.machine import DEVICE_GONE, IN_SLURM, Machine, Phase
from meshd.model.plan import AskAgent, DisableKeyExpiry, Move, NoteDevice, NotePeer, Step, Warn
from meshd.plan import arriving, doubt, leaving
from meshd.plan.asking import ended_step
from meshd.plan.leaving import fail
from meshd.plan.repair import repair
from meshd.plan.signs import contradiction, dead, patience_s, to_be_asked
from meshd.plan.world import World
from meshd.provider_api import InstanceState


def next_step(machine: Machine, world: World) -> Step | None:
    """The one step that this machine needs now; None when it is well or has to wait."""
    return _BY_PHASE[machine.phase](machine, world) or _ask(machine, world) or _device(machine, world)


def doubt_of_end(machine: Machine, world: World) -> Warn | None:
    """People are told of a machine that works, and of which its cloud says that it has ended."""
    words = contradiction(machine, world) if machine.phase in IN_SLURM else ""
    if not words:
        return None
    return Warn(
        machine.name,
        f"{words}; but its agent spoke {world.silence_s(machine):.0f} s ago, so it is kept, and its jobs go on",
        f"look at {machine.instance_id} in {machine.provider}'s console; `meshctl remove {machine.name}` gives it back "
        "once its jobs have ended",
    )


def _ask(machine: Machine, world: World) -> Step | None:
    if machine.phase not in IN_SLURM or not to_be_asked(machine, world):
        return None
    return AskAgent(machine.name, f"{machine.provider} says that it has ended")


def _device(machine: Machine, world: World) -> Step | None:
    """A device that is gone while the machine runs is written down. It ends nothing: the machine logs in anew."""
    if machine.phase not in IN_SLURM or not machine.tailnet_id or world.devices is None:
        return None
    there, noted = machine.tailnet_id in world.devices, DEVICE_GONE in machine.marks
    if there and noted:
        return NoteDevice(machine.name, "its tailnet device is there again", gone=False)
    instance = world.instance(machine)
    if there or noted or instance is None or instance.state is not InstanceState.RUNNING:
        return None
    reason = f"its tailnet device {machine.tailnet_ip} was deleted, and {machine.provider} says that the machine runs"
    return NoteDevice(machine.name, reason, gone=True)


def _ready(machine: Machine, world: World) -> Step | None:
    if machine.removal:
        return Move(machine.name, machine.reason or "not wanted any more", Phase.DRAINING)
    if step := ended_step(machine, world):
        return step
    peer = world.peer(machine)
    if peer is not None and peer.path and peer.path != machine.path:
        return NotePeer(machine.name, "its path changed", peer.ipv4, peer.id, peer.path)
    if dead(machine, world):
        why = ", since its tailnet device was deleted" if DEVICE_GONE in machine.marks else ""
        return fail(
            machine,
            f"no word from it for over {patience_s(machine, world):g} s{why}, and Slurm does not reach it either",
            FailureCause.UNKNOWN,
        )
    return _device(machine, world) or repair(machine, world) or _lasting_key(machine, world)


def _lasting_key(machine: Machine, world: World) -> Step | None:
    """An untagged device's node key expires: the machine is off the tailnet then. Only its own is changed."""
    peer = world.peer(machine)
    if peer is None or peer.key_expiry is None or peer.id != machine.tailnet_id or not world.policy.may_change_devices:
        return None
    asked = machine.marks.get("key_expiry")
    if asked is not None and (world.now - asked).total_seconds() < world.policy.key_expiry_again_s:
        return None
    return DisableKeyExpiry(machine.name, f"its node key would end on {peer.key_expiry:%Y-%m-%d}", peer.id)


_BY_PHASE: dict[Phase, Callable[[Machine, World], Step | None]] = {
    Phase.REQUESTED: arriving.requested,
    Phase.LAUNCHING: doubt.launching,
    Phase.BOOTING: arriving.booting,
    Phase.JOINING: arriving.joining,
    Phase.CONFIGURING: arriving.configuring,
    Phase.TESTING: arriving.testing,
    Phase.READY: _ready,
    Phase.DRAINING: leaving.draining,
    Phase.TERMINATING: leaving.terminating,
    Phase.LOST: leaving.terminating,
    Phase.GONE: leaving.gone,
}
