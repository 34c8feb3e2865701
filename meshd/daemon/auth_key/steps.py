"""Carries out the steps of a rotation. A step may be carried out twice, and ends in a StepOutcome, not in an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import structlog
from pydantic import SecretStr

from meshd.daemon.machines.store import MachineStore
from meshd.daemon.nodes.agents import Asks
from meshd.errors import StoreError, TailnetError, TailnetRefused
from meshd.tailnet.admin import AuthKey, Device, KeyApi
from meshd.tailnet.canary import Proof
from meshd.tailnet.keys import Minter
from meshd.tailnet.keystore import KeptKey, KeyStore
from meshd.tailnet.rotation import AuthKeyRotation, AuthKeyStage, KeyOrigin, KeyRef, Newcomer
from meshd.tailnet.rotation_steps import RotationAction, RotationStep, StepOutcome, StepVerdict

STORE_TIMEOUT_S = 30.0
REAUTH_TIMEOUT_S = 150.0
"""The node gives its login 60 s, and its recovery as long."""

log = structlog.get_logger(__name__)


class Prover(Protocol):
    """Joins the tailnet with a key for a moment."""

    async def prove(self, key: SecretStr, hostname: str) -> Proof:
        """See Canary."""
        ...


class OwnKeys(Protocol):
    """Mints keys for one machine each."""

    async def for_login(self, machine: str, attempt: str) -> KeptKey:
        """See MachineKeys."""
        ...


class Spares(Protocol):
    """Looks after the spares of machines that had keys of their own."""

    async def provide(self, name: str, since: datetime | None) -> str:
        """See SpareKeys."""
        ...

    async def revoke(self, before: datetime) -> datetime | None:
        """See SpareKeys."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the steps work with.

    Attributes:
        api: the control server's API; None without a credential.
        minter: mints; None without a credential.
        chosen_tags: the settings' tags where meshd is told to mint the keys: they may have changed; else ().
        fleet_tags: of the devices that joined; () when there are none or they differ.
        own_keys: keys for one machine each.
        spares: the spares of such machines.
        head_address: the head's on the tailnet; "" when not known.
    """

    cluster: str
    store: KeyStore
    api: KeyApi | None
    minter: Minter | None
    prover: Prover
    agents: Asks
    machine_store: MachineStore
    chosen_tags: tuple[str, ...]
    fleet_tags: Callable[[], tuple[str, ...]]
    own_keys: OwnKeys
    spares: Spares
    head_address: Callable[[], str] = lambda: ""


async def carry_out(means: StepContext, rotation: AuthKeyRotation, step: RotationStep) -> StepOutcome:
    """Do it.

    Args:
        means: what to do it with.
        rotation: its record as it was journaled before this step.
        step: one that `next_steps` asked for.
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
            return await _store(means, rotation, step.machine)
        if step.action is RotationAction.REAUTH:
            return await _reauth(means, rotation, step.machine)
        return await work[step.action](means, rotation)
    except TailnetRefused as error:
        return StepOutcome(StepVerdict.REFUSED, str(error))
    except (TailnetError, StoreError) as error:
        return StepOutcome(StepVerdict.AGAIN, str(error))


async def _mint(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    kept = means.store.kept(rotation.id, "new")
    if kept is None:
        if means.minter is None:
            raise TailnetRefused("there is no credential for the tailnet's API any more: nothing can be minted")
        old = await _record(means, rotation.old)
        tags = means.chosen_tags or (old.tags if old else ()) or (rotation.old.tags if rotation.old else ())
        kept = await means.minter.next(rotation.id, old, tags or means.fleet_tags() or means.minter.tags)
        means.store.keep(rotation.id, "new", kept)
    return StepOutcome(StepVerdict.DONE, key=kept.ref())


async def _prove(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    kept = _kept_new(means, rotation)
    record = await _record(means, kept.ref())
    if record is not None:
        _check_record(record)
    hostname = f"{means.cluster}-canary-{rotation.id}"[:63].rstrip("-")
    proof = await means.prover.prove(kept.secret, hostname)
    if record is None:
        # Nobody tells whether it is reusable: a key for one device is used up now.
        try:
            await means.prover.prove(kept.secret, hostname)
        except TailnetRefused as error:
            raise TailnetRefused(
                f"the key joined one device and then no second one: it must be reusable ({error})"
            ) from error
    warnings = _check_tags(means, rotation, proof, record)
    kept = replace(
        kept, id=kept.id or (record.id if record else ""), expires=(record.expires if record else None) or kept.expires,
        tags=proof.tags,
    )  # fmt: skip
    means.store.keep(rotation.id, "new", kept)
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


def _check_tags(means: StepContext, rotation: AuthKeyRotation, proof: Proof, record: AuthKey | None) -> tuple[str, ...]:
    """Other tags are another owner: a node that logged in anew with them would be another device.

    Returns:
        Warnings.

    Raises:
        TailnetRefused: the tags are not those that they should be.
    """
    got = set(proof.tags)
    if record is not None and got != set(record.tags):
        raise TailnetRefused(f"a device that joined with it has {_tags(proof.tags)}, the key says {_tags(record.tags)}")
    old = (rotation.old.tags if rotation.old else ()) or means.fleet_tags()
    if old and got != set(old):
        text = f"devices that join with it have {_tags(proof.tags)}, those of the old key have {_tags(old)}"
        if not means.chosen_tags or rotation.reauth:
            raise TailnetRefused(f"{text}: choose a key with the same tags")
        return (text,)
    if not got:
        return ("devices that join with it have no tag: they belong to a user, and their own keys expire",)
    return ()


async def _switch(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    new, in_use = _kept_new(means, rotation), means.store.in_use()
    if in_use is None or in_use.sha256 != new.sha256:
        if in_use is not None:
            means.store.keep(rotation.id, "old", in_use)
        seen = new.sha256
        if rotation.source is KeyOrigin.MINTED:  # what the file has, if there is one, is no news
            seen = (in_use.file_sha256 or in_use.sha256) if in_use else ""
        means.store.use(replace(new, file_sha256=seen))
    return StepOutcome(StepVerdict.DONE)


async def _switch_back(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    old, new = means.store.kept(rotation.id, "old"), means.store.kept(rotation.id, "new")
    if old is None:
        raise TailnetError("the old key is not kept in meshd's state directory any more")
    seen = new.sha256 if new and rotation.source is KeyOrigin.FILE else old.file_sha256
    means.store.use(replace(old, file_sha256=seen))
    return StepOutcome(StepVerdict.DONE)


async def _store(means: StepContext, rotation: AuthKeyRotation, machine: str) -> StepOutcome:
    if means.machine_store.get(machine).own_key:
        why = await means.spares.provide(machine, rotation.started_at)
        return StepOutcome(StepVerdict.AGAIN, why) if why else StepOutcome(StepVerdict.DONE)
    kept = means.store.kept(rotation.id, "old" if rotation.taken_back else "new")
    if kept is None:
        raise TailnetError("the key is not kept in meshd's state directory any more")
    return await store_on(means, machine, kept)


async def store_on(means: StepContext, machine: str, key: KeptKey) -> StepOutcome:
    """Give a node an auth key to keep; its agent reads it back and tells its sha256."""
    result = await means.agents.ask(machine, "auth_key", {"key": key.secret}, STORE_TIMEOUT_S, first=True)
    if result is None:
        return StepOutcome(StepVerdict.AGAIN, f"its agent did not answer within {STORE_TIMEOUT_S:g} s")
    if not result.ok:
        return StepOutcome(StepVerdict.AGAIN, result.detail or "its agent did not say why")
    if result.data.get("sha256") != key.sha256:
        return StepOutcome(StepVerdict.AGAIN, "its agent stored another key than it was given")
    if means.machine_store.get(machine).auth_key != key.sha256:
        means.machine_store.change(
            machine, "auth_key", f"keeps the auth key {key.id or key.sha256[:12]}", auth_key=key.sha256
        )
    return StepOutcome(StepVerdict.DONE)


async def _reauth(means: StepContext, rotation: AuthKeyRotation, machine: str) -> StepOutcome:
    args: dict[str, Any] = {"attempt": rotation.attempt(machine)}
    if means.machine_store.get(machine).own_key:
        args["key"] = (await means.own_keys.for_login(machine, args["attempt"])).secret
    result = await means.agents.ask(machine, "reauth", args, REAUTH_TIMEOUT_S)
    if result is None:
        return StepOutcome(StepVerdict.AGAIN, f"its agent did not answer within {REAUTH_TIMEOUT_S:g} s")
    if not result.ok:
        return StepOutcome(StepVerdict.REFUSED, result.detail or "its agent did not say why")
    gap = result.data.get("gap_s")
    return StepOutcome(
        StepVerdict.DONE, node_key=str(result.data.get("node_key", "")),
        gap_s=float(gap) if isinstance(gap, int | float) else 0.0,
    )  # fmt: skip


async def _revoke_old(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    old = rotation.old
    first = rotation.stage is AuthKeyStage.REVOKE_FIRST
    spares_since = await means.spares.revoke(rotation.started_at) if first else None
    if old is None and first and means.api is None:
        return StepOutcome(
            StepVerdict.REFUSED, "there is no credential for the tailnet's API any more: nothing can be revoked"
        )
    if old is None:
        born = rotation.leaked_at or spares_since or rotation.started_at
        return StepOutcome(StepVerdict.DONE, newcomers=await _newcomers(means, born) if first else ())
    by_hand = f"meshd cannot revoke the old key {old.id or 'of the file'}: do it in the control server's admin console"
    if means.api is None or not old.id:
        return StepOutcome(StepVerdict.REFUSED if first else StepVerdict.DONE, by_hand, warnings=(by_hand,))
    try:
        record = await means.api.get_key(old.id)
        await means.api.revoke_key(old.id)
        after = await means.api.get_key(old.id)
    except TailnetRefused as error:
        if first:
            raise
        return StepOutcome(StepVerdict.DONE, warnings=(f"{by_hand} ({error})",))
    if record is None and not first:
        return StepOutcome(
            StepVerdict.DONE, warnings=(f"the tailnet's API does not know the old key {old.id} (any more)",)
        )
    if record is None:
        raise TailnetRefused(f"the tailnet's API does not know the old key {old.id}: {by_hand}")
    if after is not None and after.valid:
        return StepOutcome(StepVerdict.AGAIN, f"the old key {old.id} is still valid after it was revoked")
    log.info("auth_key_revoked", key_id=old.id, rotation=rotation.id)
    since = rotation.leaked_at or (record.created if record else None)
    return StepOutcome(StepVerdict.DONE, newcomers=await _newcomers(means, since) if first else ())


async def _newcomers(means: StepContext, since: datetime | None) -> tuple[Newcomer, ...]:
    """The devices born since strangers may have had the key, nobody's first; None: all."""
    assert means.api is not None
    machines = {m.tailnet_id: m.name for m in means.machine_store.journal.machines() if m.tailnet_id}
    names = {m.name for m in means.machine_store.journal.machines()}
    head = means.head_address()

    def whose(device: Device) -> str:
        if head and device.tailnet_ip == head:
            return "the head"
        return machines.get(device.id, device.hostname if device.hostname in names else "")

    found = [
        Newcomer(d.id, d.hostname, d.tailnet_ip, d.created, whose(d))
        for d in await means.api.list_devices()
        if since is None or d.created is None or d.created >= since
    ]
    return tuple(sorted(found, key=lambda one: (bool(one.machine), one.hostname)))


async def _discard_new(means: StepContext, rotation: AuthKeyRotation) -> StepOutcome:
    if rotation.source is KeyOrigin.FILE or means.minter is None or means.api is None:
        return StepOutcome(StepVerdict.DONE)
    try:
        await means.minter.revoke_lost(rotation.id)
        if rotation.new is not None and rotation.new.id:
            await means.api.revoke_key(rotation.new.id)
    except TailnetRefused as error:
        key = rotation.new.id if rotation.new else "that was minted"
        return StepOutcome(StepVerdict.DONE, warnings=(f"revoke the key {key} in the admin console: {error}",))
    return StepOutcome(StepVerdict.DONE)


def _kept_new(means: StepContext, rotation: AuthKeyRotation) -> KeptKey:
    kept = means.store.kept(rotation.id, "new")
    if kept is None:
        raise TailnetRefused("the new key is not kept in meshd's state directory any more")
    return kept


async def _record(means: StepContext, key: KeyRef | None) -> AuthKey | None:
    return await means.api.get_key(key.id) if means.api is not None and key is not None and key.id else None


def _tags(tags: tuple[str, ...]) -> str:
    return ", ".join(tags) or "no tags"
