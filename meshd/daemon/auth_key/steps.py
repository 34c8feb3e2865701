"""Carries out the steps of an auth key rotation. A step may be carried out twice, and ends in a StepOutcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import structlog
from pydantic import SecretStr

from meshd.codes import EventKind
from meshd.daemon.agents import Asks
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.auth_key.spare_keys import SpareKeys
from meshd.daemon.machine_store import MachineStore
from meshd.errors import StoreError, TailnetError, TailnetRefused
from meshd.tailnet.admin import AuthKey, Device
from meshd.tailnet.canary import Proof
from meshd.tailnet.keystore import KeptKey
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin, KeyRef, Newcomer
from meshd.tailnet.rotation_steps import RotationAction, RotationStep, StepOutcome, StepVerdict

STORE_TIMEOUT_S = 30.0
REAUTH_TIMEOUT_S = 150.0
"""A node gives its login 60 s, and its way back 60 s."""

log = structlog.get_logger(__name__)


class Prover(Protocol):
    """Joins the tailnet with a key for a moment, to prove the key."""

    async def prove(self, key: SecretStr, hostname: str) -> Proof:
        """See Canary."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the steps work with.

    Attributes:
        cluster: its name, for the name of the device that proves a key.
        ports: mint, keep and revoke keys.
        prover: joins the tailnet with a key for a moment.
        agents: asks nodes.
        machine_store: the machines.
        fleet: what is known of them.
        machine_keys: keys for one machine each.
        spares: the spares of such machines.
    """

    cluster: str
    ports: KeyPorts
    prover: Prover
    agents: Asks
    machine_store: MachineStore
    fleet: Fleet
    machine_keys: MachineKeys
    spares: SpareKeys


async def carry_out(context: StepContext, rotation: AuthKeyRotation, step: RotationStep) -> StepOutcome:
    """Carry a step out.

    Args:
        context: what to do it with.
        rotation: its record as the journal had it before this step.
        step: one of those that `next_steps` returned.
    """
    work = {
        RotationAction.MINT: _mint,
        RotationAction.PROVE: _prove,
        RotationAction.SWITCH: _switch,
        RotationAction.SWITCH_BACK: _switch_back,
        RotationAction.REVOKE_OLD: _revoke_old,
        RotationAction.DISCARD_NEW: _discard_new,
    }
    try:
        if step.action is RotationAction.STORE:
            return await _store(context, rotation, step.machine)
        if step.action is RotationAction.REAUTH:
            return await _reauth(context, rotation, step.machine)
        return await work[step.action](context, rotation)
    except TailnetRefused as error:
        return StepOutcome(StepVerdict.REFUSED, str(error))
    except (TailnetError, StoreError) as error:
        return StepOutcome(StepVerdict.AGAIN, str(error))


async def _mint(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    ports, minter = context.ports, context.ports.minter
    kept = ports.store.kept(rotation.id, "new")
    if kept is None:
        if minter is None:
            raise TailnetRefused("there is no longer a credential for the tailnet's API: nothing can be minted")
        old = await _record(context, rotation.old)
        tags = ports.chosen_tags or (old.tags if old else ()) or (rotation.old.tags if rotation.old else ())
        kept = await minter.next(rotation.id, old, tags or context.fleet.device_tags() or minter.tags)
        ports.store.keep(rotation.id, "new", kept)
    return StepOutcome(StepVerdict.DONE, key=kept.ref())


async def _prove(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    kept = _kept_new(context, rotation)
    record = await _record(context, kept.ref())
    if record is not None:
        _check_record(record)
    hostname = f"{context.cluster}-canary-{rotation.id}"[:63].rstrip("-")
    proof = await context.prover.prove(kept.secret, hostname)
    if record is None:
        # Whether it is reusable is not known. A key for one device is used up now.
        try:
            await context.prover.prove(kept.secret, hostname)
        except TailnetRefused as error:
            raise TailnetRefused(
                f"the key joined one device and then no second one: it must be reusable ({error})"
            ) from error
    warnings = _check_tags(context, rotation, proof, record)
    kept = replace(
        kept, id=kept.id or (record.id if record else ""), expires=(record.expires if record else None) or kept.expires,
        tags=proof.tags,
    )  # fmt: skip
    context.ports.store.keep(rotation.id, "new", kept)
    return StepOutcome(StepVerdict.DONE, key=kept.ref(), warnings=warnings)


def _check_record(record: AuthKey) -> None:
    if not record.valid:
        raise TailnetRefused(f"the key {record.id} is expired or revoked")
    if not record.reusable:
        raise TailnetRefused(f"the key {record.id} is for one device only: it must be reusable")
    if record.ephemeral:
        raise TailnetRefused(
            f"the key {record.id} is ephemeral: its devices would lose their address when they are offline for a while"
        )


def _check_tags(
    context: StepContext, rotation: AuthKeyRotation, proof: Proof, record: AuthKey | None
) -> tuple[str, ...]:
    """Check that a device keeps its owner: with other tags, a node that logs in again would be another device.

    Returns:
        Warnings.

    Raises:
        TailnetRefused: the tags are wrong.
    """
    got = set(proof.tags)
    if record is not None and got != set(record.tags):
        raise TailnetRefused(f"a device that joined with it has {_tags(proof.tags)}, the key says {_tags(record.tags)}")
    old = (rotation.old.tags if rotation.old else ()) or context.fleet.device_tags()
    if old and got != set(old):
        text = f"devices that join with it have {_tags(proof.tags)}, those of the old key have {_tags(old)}"
        if not context.ports.chosen_tags or rotation.reauth:
            raise TailnetRefused(f"{text}: choose a key with the same tags")
        return (text,)
    if not got:
        return ("devices that join with it have no tag: they belong to a user, and their own keys expire",)
    return ()


async def _switch(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    new, in_use = _kept_new(context, rotation), context.ports.store.in_use()
    if in_use is None or in_use.sha256 != new.sha256:
        if in_use is not None:
            context.ports.store.keep(rotation.id, "old", in_use)
        seen = new.sha256
        if rotation.source is KeyOrigin.MINTED:  # the key in the file, if there is one, is not new
            seen = (in_use.file_sha256 or in_use.sha256) if in_use else ""
        context.ports.store.use(replace(new, file_sha256=seen))
    return StepOutcome(StepVerdict.DONE)


async def _switch_back(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    old, new = context.ports.store.kept(rotation.id, "old"), context.ports.store.kept(rotation.id, "new")
    if old is None:
        raise TailnetError("the old key is no longer in meshd's state directory")
    seen = new.sha256 if new and rotation.source is KeyOrigin.FILE else old.file_sha256
    context.ports.store.use(replace(old, file_sha256=seen))
    return StepOutcome(StepVerdict.DONE)


async def _store(context: StepContext, rotation: AuthKeyRotation, machine: str) -> StepOutcome:
    if context.machine_store.get(machine).own_key:
        why = await context.spares.provide(machine, rotation.started_at)
        return StepOutcome(StepVerdict.AGAIN, why) if why else StepOutcome(StepVerdict.DONE)
    kept = context.ports.store.kept(rotation.id, "old" if rotation.taken_back else "new")
    if kept is None:
        raise TailnetError("the key is no longer in meshd's state directory")
    return await store_on(context, machine, kept)


async def store_on(context: StepContext, machine: str, key: KeptKey) -> StepOutcome:
    """Give a node an auth key to keep. Its agent reads the key back and reports its sha256."""
    result = await context.agents.ask(machine, "auth_key", {"key": key.secret}, STORE_TIMEOUT_S, first=True)
    if result is None:
        return StepOutcome(StepVerdict.AGAIN, f"its agent did not answer within {STORE_TIMEOUT_S:g} s")
    if not result.ok:
        return StepOutcome(StepVerdict.AGAIN, result.detail or "its agent did not say why")
    if result.data.get("sha256") != key.sha256:
        return StepOutcome(StepVerdict.AGAIN, "its agent stored another key than it was given")
    if context.machine_store.get(machine).auth_key != key.sha256:
        context.machine_store.change(
            machine, EventKind.AUTH_KEY, f"keeps the auth key {key.id or key.sha256[:12]}", auth_key=key.sha256
        )
    return StepOutcome(StepVerdict.DONE)


async def _reauth(context: StepContext, rotation: AuthKeyRotation, machine: str) -> StepOutcome:
    args: dict[str, Any] = {"attempt": rotation.attempt(machine)}
    if context.machine_store.get(machine).own_key:
        args["key"] = (await context.machine_keys.for_login(machine, args["attempt"])).secret
    result = await context.agents.ask(machine, "reauth", args, REAUTH_TIMEOUT_S)
    if result is None:
        return StepOutcome(StepVerdict.AGAIN, f"its agent did not answer within {REAUTH_TIMEOUT_S:g} s")
    if not result.ok:
        return StepOutcome(StepVerdict.REFUSED, result.detail or "its agent did not say why")
    gap = result.data.get("gap_s")
    return StepOutcome(
        StepVerdict.DONE, node_key=str(result.data.get("node_key", "")),
        gap_s=float(gap) if isinstance(gap, int | float) else 0.0,
    )  # fmt: skip


async def _revoke_old(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    old = rotation.old
    first = rotation.stage is AuthKeyStage.REVOKE_FIRST
    spares_since = await context.machine_keys.revoke_spares(rotation.started_at) if first else None
    if old is None and first and context.ports.api is None:
        return StepOutcome(
            StepVerdict.REFUSED, "there is no longer a credential for the tailnet's API: nothing can be revoked"
        )
    if old is None:
        joined_since = rotation.leaked_at or spares_since or rotation.started_at
        return StepOutcome(StepVerdict.DONE, newcomers=await _newcomers(context, joined_since) if first else ())
    by_hand = f"meshd cannot revoke the old key {old.id or 'of the file'}: do it in the control server's admin console"
    if context.ports.api is None or not old.id:
        return StepOutcome(StepVerdict.REFUSED if first else StepVerdict.DONE, by_hand, warnings=(by_hand,))
    try:
        record = await context.ports.api.get_key(old.id)
        await context.ports.api.revoke_key(old.id)
        after = await context.ports.api.get_key(old.id)
    except TailnetRefused as error:
        if first:
            raise
        return StepOutcome(StepVerdict.DONE, warnings=(f"{by_hand} ({error})",))
    if record is None and not first:
        return StepOutcome(StepVerdict.DONE, warnings=(f"the tailnet's API no longer knows the old key {old.id}",))
    if record is None:
        raise TailnetRefused(f"the tailnet's API does not know the old key {old.id}: {by_hand}")
    if after is not None and after.valid:
        return StepOutcome(StepVerdict.AGAIN, f"the old key {old.id} is still valid after it was revoked")
    log.info("auth_key_revoked", key_id=old.id, rotation=rotation.id)
    since = rotation.leaked_at or (record.created if record else None)
    return StepOutcome(StepVerdict.DONE, newcomers=await _newcomers(context, since) if first else ())


async def _newcomers(context: StepContext, since: datetime | None) -> tuple[Newcomer, ...]:
    """The devices that joined since strangers may have had the key; those of no machine come first. None: all."""
    assert context.ports.api is not None
    machines = {m.tailnet_id: m.name for m in context.machine_store.journal.machines() if m.tailnet_id}
    names = {m.name for m in context.machine_store.journal.machines()}
    head = context.fleet.head_address()

    def whose(device: Device) -> str:
        if head and device.tailnet_ip == head:
            return "the head"
        return machines.get(device.id, device.hostname if device.hostname in names else "")

    found = [
        Newcomer(d.id, d.hostname, d.tailnet_ip, d.created, whose(d))
        for d in await context.ports.api.list_devices()
        if since is None or d.created is None or d.created >= since
    ]
    return tuple(sorted(found, key=lambda one: (bool(one.machine), one.hostname)))


async def _discard_new(context: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    if rotation.source is KeyOrigin.FILE or context.ports.minter is None or context.ports.api is None:
        return StepOutcome(StepVerdict.DONE)
    try:
        await context.ports.minter.revoke_lost(rotation.id)
        if rotation.new is not None and rotation.new.id:
            await context.ports.api.revoke_key(rotation.new.id)
    except TailnetRefused as error:
        key = rotation.new.id if rotation.new else "that was minted"
        return StepOutcome(StepVerdict.DONE, warnings=(f"revoke the key {key} in the admin console: {error}",))
    return StepOutcome(StepVerdict.DONE)


def _kept_new(context: StepContext, rotation: AuthKeyRotation) -> KeptKey:
    kept = context.ports.store.kept(rotation.id, "new")
    if kept is None:
        raise TailnetRefused("the new key is no longer in meshd's state directory")
    return kept


async def _record(context: StepContext, key: KeyRef | None) -> AuthKey | None:
    return (
        await context.ports.api.get_key(key.id)
        if context.ports.api is not None and key is not None and key.id
        else None
    )


def _tags(tags: tuple[str, ...]) -> str:
    return ", ".join(tags) or "no tags"
