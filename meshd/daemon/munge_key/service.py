"""The requests of people about the rotation of the munge key."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.codes import RefusalCode
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.errors import MungeError, SlurmError
from meshd.model.ids import slot_order
from meshd.munge.rotation import MungeRotation, MungeStage, begin, node_state, waits_for
from meshd.runtime.clock import Clock

SLURM_USES_MUNGE = "auth/munge"


class MungeKeyService:
    """See meshd.api.endpoints for what each method promises.

    Args:
        controller: carries rotations out.
        active: tells whether a rotation, of either key, is active.
        clock: time.
    """

    def __init__(self, controller: MungeKeyController, active: ActiveRotations, clock: Clock) -> None:
        self._controller = controller
        self._active = active
        self._clock = clock

    async def rotation(self) -> s.MungeRotationView:
        """The active rotation, or the last one."""
        rotation = self._controller.last
        return (
            self._view(rotation)
            if rotation
            else s.MungeRotationView(at=self._clock.now(), key=self._controller.keys.name())
        )

    async def abort(self, request: s.AbortRotationRequest, actor: Actor) -> s.MungeRotationView:
        """Take it back."""
        self._check_active()
        return self._view(self._controller.abort(str(actor.user)))

    async def waive(self, request: s.WaiveRequest, actor: Actor) -> s.MungeRotationView:
        """No longer wait for a node."""
        self._check_active()
        return self._view(self._controller.waive(self._names([request.machine]), str(actor.user)))

    async def act(self, request: s.MungeRotationRequest, actor: Actor) -> s.MungeRotationView:
        """Begin, abort or waive, as the deprecated endpoint has it."""
        if request.action == "begin":
            begin = s.RotateMungeKeyRequest(machines=request.machines, dry_run=request.dry_run)
            return await self.rotate(begin, actor)
        if request.action == "abort":
            return await self.abort(s.AbortRotationRequest(), actor)
        self._check_active()
        if not request.machines:
            raise BadRequest(
                "name the machine not to wait for", "a machine or its slot", code=RefusalCode.MACHINE_NEEDED
            )
        return self._view(self._controller.waive(self._names(request.machines), str(actor.user)))

    async def rotate(self, request: s.RotateMungeKeyRequest, actor: Actor) -> s.MungeRotationView:
        """Begin one, unless it is a dry run."""
        await self._check_slurm()
        if (other := self._active.current()) is not None:
            raise other.refusal()
        waived = self._names(request.machines)
        if request.dry_run:
            return self._preview(waived)
        try:
            return self._view(self._controller.begin(str(actor.user), waived))
        except MungeError as error:
            raise Refused(str(error), "see `meshctl doctor`", code=RefusalCode.ROTATION_IMPOSSIBLE) from error

    def _check_active(self) -> None:
        if not self._controller.active:
            raise Refused(
                "no rotation of the munge key is active",
                "`meshctl rotate-key --munge --status`",
                code=RefusalCode.NO_ROTATION,
            )

    async def _check_slurm(self) -> None:
        try:
            auth_type = await self._controller.head.auth_type()
        except SlurmError as error:
            raise Refused(
                f"Slurm cannot be asked how it authenticates: {error}",
                "bring slurmctld back, then try again",
                code=RefusalCode.ROTATION_IMPOSSIBLE,
            ) from error
        if auth_type != SLURM_USES_MUNGE:
            raise Refused(
                f"Slurm here uses {auth_type or 'no authentication that is known'}, not munge: there is no munge key "
                "to rotate",
                "with auth/slurm (24.05 and newer) put a new key into slurm.jwks beside the old one, `use` it, and "
                "`scontrol reconfigure` (docs/operations.md, Rotate the munge key)",
                code=RefusalCode.MUNGE_NOT_USED,
            )

    # -- inside ---------------------------------------------------------------------------------------------------

    def _view(self, rotation: MungeRotation) -> s.MungeRotationView:
        fleet = self._controller.fleet()
        waiting = waits_for(rotation, fleet)
        return s.MungeRotationView(
            at=self._clock.now(), key=self._controller.keys.name(), id=rotation.id, stage=rotation.stage.value,
            stage_since=rotation.stage_since, active=not rotation.ended, started_at=rotation.started_at,
            ended_at=rotation.ended_at, by=rotation.by, old=rotation.old, new=rotation.new,
            switch_at=rotation.switch_at, failure=rotation.failure, taken_back=rotation.taken_back,
            longest_away_ms=rotation.longest_away_ms, spread_ms=rotation.spread_ms,
            nodes=[
                s.MungeNodeRow(
                    machine=name, slot=node.slot, key=node.key, state=node_state(rotation, node),
                    reason=waiting.get(name, "") or node.problem,
                )
                for name, node in sorted(fleet.nodes.items(), key=lambda item: slot_order(item[1].slot))
            ],
        )  # fmt: skip

    def _preview(self, waived: tuple[str, ...]) -> s.MungeRotationView:
        """The rotation as it would begin. Nothing is written."""
        now = self._clock.now()
        would = begin("", self._controller.keys.name(), now, "", waived).moved(MungeStage.STAGE, now, new="?")
        fleet, timings = self._controller.fleet(), self._controller.timings
        nodes = [
            s.MungeNodeRow(
                machine=name, slot=node.slot, key=node.key, state=node_state(would, node),
                reason="" if node.reachable else waits_for(would, fleet).get(name, "it gets the key when it is back"),
            )
            for name, node in sorted(fleet.nodes.items(), key=lambda item: slot_order(item[1].slot))
        ]  # fmt: skip
        reached = sum(node.reachable for node in fleet.nodes.values())
        return s.MungeRotationView(
            at=now, key=self._controller.keys.name(), old=self._controller.keys.name(), nodes=nodes,
            steps=[
                "make a key of 1024 random bytes",
                f"store it beside the present one on the head and on {reached} nodes",
                f"on all of them at one moment: stop munged, change the key, start munged {timings.away_s:g} s later",
                "have the head and each node decode each other's credentials",
                "erase the old key; nodes that are away get the new one when they return",
            ],
        )  # fmt: skip

    def _names(self, asked: Iterable[str]) -> tuple[str, ...]:
        """The names of machines, each given by its own name or its slot's."""
        nodes = self._controller.fleet().nodes
        by_any = {**{node.slot: name for name, node in nodes.items()}, **{name: name for name in nodes}}
        unknown = [one for one in asked if one not in by_any]
        if unknown:
            raise Unknown(
                f"there is no machine or slot {', '.join(unknown)} that has joined",
                "see `meshctl nodes`",
                code=RefusalCode.NO_SUCH_MACHINE,
            )
        return tuple(by_any[one] for one in asked)
