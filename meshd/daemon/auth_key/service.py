"""The requests of people about the rotation of the auth key, and the documents that they get."""

from __future__ import annotations

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused, Unknown
from meshd.codes import RefusalCode
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.controller import AuthKeyController
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.model.ids import slot_order
from meshd.plaintext import counted
from meshd.runtime.clock import Clock
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import SETTLED, AuthKeyRotation, KeyOrigin, KeyRef, NodeStage, RotationNode, why_not_abort
from meshd.tailnet.rotation_fleet import AuthKeyFleet, SeenNode
from meshd.tailnet.rotation_settle import holds_up


class AuthKeyService:
    """See meshd.api.endpoints for what each method promises.

    Args:
        controller: carries rotations out.
        ports: have the key in use, the user's file, and the API.
        fleet: what is known of the machines.
        active: tells whether a rotation, of either key, is active.
        clock: time.
    """

    def __init__(
        self, controller: AuthKeyController, ports: KeyPorts, fleet: Fleet, active: ActiveRotations, clock: Clock
    ) -> None:
        self._controller = controller
        self._store = ports.store
        self._file = ports.file
        self._mints = ports.mints
        self._can_mint = ports.minter is not None
        self._shared_key_wanted = ports.modes.shared_key_wanted
        self._fleet = fleet
        self._active = active
        self._clock = clock

    async def rotation(self) -> s.RotationView:
        """The active rotation, or the last one."""
        return self._view(self._controller.last)

    async def rotate(self, request: s.RotateKeyRequest, actor: Actor) -> s.RotationView:
        """Begin one, unless `dry_run`."""
        if (other := self._active.current()) is not None:
            raise other.refusal()
        in_use = self._store.in_use()
        shared = in_use is not None or self._shared_key_wanted
        source, new = self._source(in_use) if shared else (self._nothing_shared(request), None)
        if request.compromised and shared and (not self._can_mint or in_use is None or not in_use.id):
            raise Refused(
                "meshd cannot revoke the key in use: it has no credential for the tailnet's API, or the key has no id",
                f"revoke it in the admin console, put a new key into {self._file.name}, then "
                "`meshctl rotate-key --reauth`",
                code=RefusalCode.KEY_NOT_REVOCABLE,
            )
        if request.dry_run:
            view = self._view(None)
            return view.model_copy(update={"steps": self._steps(request, source, in_use), "source": source.value})
        return self._view(
            self._controller.begin(
                source, by=str(actor.user), reason="the key is compromised" if request.compromised else "asked for",
                new=new, reauth=request.reauth, compromised=request.compromised, leaked_at=request.leaked_at,
            )
        )  # fmt: skip

    async def abort(self, request: s.AbortRotationRequest, actor: Actor) -> s.RotationView:
        """Take it back. Asking twice is no error."""
        active = self._active_rotation()
        if active.aborted_by or active.taken_back:
            return self._view(active)
        if why := why_not_abort(active):
            raise Refused(
                f"the rotation cannot be taken back: {why}",
                "let it end, then rotate again if the new key is bad",
                code=RefusalCode.TOO_LATE_TO_ABORT,
            )
        return self._view(self._controller.abort(str(actor.user)))

    async def waive(self, request: s.WaiveRequest, actor: Actor) -> s.RotationView:
        """Do not wait for a node. Waiving twice is no error."""
        active = self._active_rotation()
        name = next((m for m, n in active.nodes.items() if request.machine in {m, n.slot} and _open(n)), "")
        if not name:
            name = next((m for m, n in active.nodes.items() if request.machine in {m, n.slot}), "")
        if not name:
            raise Unknown(
                f"the rotation does not wait for {request.machine}",
                "see `meshctl rotate-key --status`",
                code=RefusalCode.NOT_WAITED_FOR,
            )
        return self._view(self._controller.waive(name, str(actor.user)) if _open(active.nodes[name]) else active)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _active_rotation(self) -> AuthKeyRotation:
        if self._controller.active is None:
            text = "no rotation of the auth key is active"
            raise Refused(text, "`meshctl rotate-key` begins one", code=RefusalCode.NO_ROTATION)
        return self._controller.active

    def _nothing_shared(self, request: s.RotateKeyRequest) -> KeyOrigin:
        """No key is shared. A rotation then replaces the spares, or has the nodes log in again."""
        if not self._can_mint:
            raise Refused(
                "there is no key to rotate: each machine joined with a key of its own, for one use, and meshd has no "
                "credential to mint others",
                "give it one (docs/tailnet.md, Let meshd mint keys)",
                code=RefusalCode.NO_KEY_TO_ROTATE,
            )
        spares = any(node.spare_at is not None for node in self._fleet.now().nodes.values())
        if request.reauth or request.compromised or spares:
            return KeyOrigin.NONE
        raise Refused(
            "there is no key to rotate: each machine joined with a key of its own, for one use, and no node holds a "
            "spare one now",
            "`meshctl rotate-key --reauth` has every node log in again, each with a new key of its own",
            code=RefusalCode.NO_KEY_TO_ROTATE,
        )

    def _source(self, in_use: KeptKey | None) -> tuple[KeyOrigin, KeptKey | None]:
        """Where the new key comes from: the file, when it has another key than the one in use, or the API."""
        found = None if self._mints else self._file.find()
        if found is not None and in_use is not None and found.sha256 != in_use.sha256:
            stale = found.sha256 == in_use.file_sha256 and self._can_mint
            if not stale:
                return KeyOrigin.FILE, found
        if self._can_mint:
            return KeyOrigin.MINTED, None
        restart = "" if self._file.watched else ", then `systemctl restart meshd`"
        raise Refused(
            f"there is no new auth key: {self._file.name} has the one in use, and meshd has no credential to mint one",
            f"put a new reusable key there{restart}: meshd gives it to all nodes by itself (docs/tailnet.md, Rotation)",
            code=RefusalCode.NO_NEW_KEY,
        )

    def _steps(self, request: s.RotateKeyRequest, source: KeyOrigin, in_use: KeptKey | None) -> list[str]:
        fleet, old = self._fleet.now(), (in_use.id or in_use.sha256[:12]) if in_use else "none"
        nodes = sorted(fleet.nodes.values(), key=lambda node: slot_order(node.slot))
        own = [node.slot for node in nodes if node.own_key]
        spare = [node.slot for node in nodes if node.own_key and node.spare_at is not None]
        lines = []
        if request.compromised:
            keys = " and ".join([f"the key in use, {old}"] * (in_use is not None) + ["all spare keys"] * bool(spare))
            lines.append(
                f"revoke {keys}, and list the devices that joined since" if keys else "list the newest devices"
            )
        if source is not KeyOrigin.NONE:
            lines += self._steps_of_shared(source, old, [node for node in nodes if not node.own_key])
        if spare:
            lines.append(
                f"give {', '.join(spare)} each a new spare key, verified by its sha256, and revoke the old one"
            )
        if request.reauth or request.compromised:
            again = "have the nodes log in again: one idle node first, then a few at a time, never two of one job"
            each = f"; {', '.join(own)} each with a new key of its own for one use, revoked when it was used"
            lines.append(again + each * bool(own))
        elif own and not spare:
            lines.append(f"nothing on {', '.join(own)}: they joined with keys of their own and hold no spare one yet")
        if source is not KeyOrigin.NONE and not request.compromised:
            lines.append(f"revoke {old} when every node is confirmed or waived")
        return lines

    def _steps_of_shared(self, source: KeyOrigin, old: str, keep: list[SeenNode]) -> list[str]:
        away = [node.slot for node in keep if not node.reachable]
        pending = f"; pending: {', '.join(away)}" if away else ""
        lines = [
            f"mint a key like {old}" if source is KeyOrigin.MINTED else f"take the new key from {self._file.name}",
            "prove it: a throw-away device joins with it",
            "give it to machines that are launched from now on",
        ]
        if keep:
            lines.append(f"give it to {counted(len(keep), 'node')}, verified by its sha256{pending}")
        return lines

    def _view(self, rotation: AuthKeyRotation | None) -> s.RotationView:
        in_use = self._store.in_use()
        fleet = self._fleet.now()
        base = s.RotationView(
            at=self._clock.now(), in_use=_key(in_use.ref()) if in_use else None,
            own_key_nodes=sorted((node.slot for node in fleet.nodes.values() if node.own_key), key=slot_order),
        )  # fmt: skip
        if rotation is None:
            return base
        held = {} if rotation.ended else holds_up(rotation, fleet)
        return base.model_copy(
            update={
                "id": rotation.id, "stage": rotation.stage.value, "stage_since": rotation.stage_since,
                "active": not rotation.ended, "source": rotation.source.value, "reauth": rotation.reauth,
                "compromised": rotation.compromised, "started_at": rotation.started_at, "ended_at": rotation.ended_at,
                "by": rotation.by, "reason": rotation.reason, "old": _key(rotation.old), "new": _key(rotation.new),
                "failure": rotation.failure, "retry_at": rotation.retry_at, "taken_back": rotation.taken_back,
                "no_way_back": why_not_abort(rotation), "warnings": list(rotation.warnings),
                "newcomers": [
                    s.NewcomerRow(
                        device_id=n.device_id, hostname=n.hostname, address=n.address, created=n.created,
                        machine=n.machine,
                    )
                    for n in rotation.newcomers
                ],
                "nodes": [
                    _node(machine, node, fleet, held.get(machine, ""))
                    for machine, node in sorted(rotation.nodes.items(), key=lambda pair: slot_order(pair[1].slot))
                ],
            }
        )  # fmt: skip


def _open(node: RotationNode) -> bool:
    return node.stage not in SETTLED


def _key(ref: KeyRef | None) -> s.KeyRow | None:
    if ref is None:
        return None
    return s.KeyRow(
        id=ref.id, sha256=ref.sha256[:12], expires=ref.expires, tags=list(ref.tags), minted=ref.minted
    )  # fmt: skip


def _node(machine: str, node: RotationNode, fleet: AuthKeyFleet, held: str) -> s.RotationNodeRow:
    seen = fleet.nodes.get(machine)
    state = node.stage.value
    if _open(node) and (seen is None or not seen.reachable):
        state = "pending"
    elif _open(node) and node.failure:
        state = "failed"
    reason = held or (node.failure if node.stage is NodeStage.WAIVED else "")
    return s.RotationNodeRow(
        machine=machine, slot=node.slot, state=state, since=node.since, reason=reason, attempts=node.attempts,
        retry_at=node.retry_at, gap_s=round(node.gap_s, 3),
    )  # fmt: skip
