"""`meshctl audit`: asks every cloud and the tailnet what lies there. It changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.api import schema as s
from meshd.errors import ProviderError, TailnetError
from meshd.model.host import PROVIDER as OWNED
from meshd.model.host import Host
from meshd.plan import audit as plan
from meshd.plan.audit import Books, Thing, Verdict
from meshd.provider_api import Auditor, BilledKind, BilledListing, Image, ImageBaker, Provider, ProviderName
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.bakes import Bakes
from meshd.store.journal import Journal
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet.admin import KeyApi
from meshd.tailnet.keystore import KeptKey, KeyStore

ROWS_MAX = 20_000
_ORDER = {Verdict.LEAKED: 0, Verdict.UNKNOWN: 1, Verdict.OURS: 2, Verdict.FOREIGN: 3}


@dataclass(frozen=True, slots=True)
class AuditSources:
    """What an audit reads besides the journal's machines.

    Attributes:
        cluster: its name.
        pools: those of the settings.
        providers: the enabled ones.
        bakes: images that are being made.
        hosts: owned machines.
        api: the tailnet's API; None without a credential.
        admin: how its URL begins, for people; "" where its admin console is the better way.
        keys: the auth key in use.
        key_file: the auth key in the head's own file; None where there is none.
        open_keys: keys of machines.
        rotations: of the auth key.
        head_device: the id of the head's device; "" when it is not known.
    """

    cluster: str
    pools: Callable[[], Sequence[str]]
    providers: Mapping[str, Provider]
    bakes: Bakes
    hosts: Callable[[], tuple[Host, ...]]
    api: KeyApi | None
    admin: str
    keys: KeyStore
    key_file: Callable[[], KeptKey | None]
    open_keys: OpenKeys
    rotations: AuthRotations
    head_device: Callable[[], str]


class AuditService:
    """Answers AUDIT.

    Args:
        journal: the machines.
        sources: see AuditSources.
        clock: time.
    """

    def __init__(self, journal: Journal, sources: AuditSources, clock: Clock) -> None:
        self._journal = journal
        self._sources = sources
        self._clock = clock

    async def audit(self) -> s.AuditView:
        """Ask all at once. The books are read last: what was made meanwhile is in them."""
        providers = {name: one for name, one in self._sources.providers.items() if name != OWNED}
        listings, images, tailnet = await asyncio.gather(
            asyncio.gather(*(_billed(name, one) for name, one in providers.items())),
            asyncio.gather(*(_images(name, one) for name, one in providers.items())),
            self._tailnet(),
        )
        known = {name: {str(i.id): i for i in found} for name, found in images if isinstance(found, list)}
        every = [one for part in listings for one in part]
        every += [one for name, found in images for one in _listings_of_images(name, found, every)]
        devices, keys, failed, notes = tailnet
        books = self._books(every, devices, keys, known)
        things = [*plan.audited(every, books), *plan.audited_devices(devices, books)]
        things += [*plan.audited_keys(keys, books), *failed]
        return self._view(things, notes)

    def _books(
        self,
        listings: Sequence[BilledListing],
        devices: Sequence[plan.Device],
        keys: Sequence[plan.Key],
        images: Mapping[str, Mapping[str, Image]],
    ) -> Books:
        sources, journal = self._sources, self._journal
        machines = {str(m.name): m for m in journal.machines()}
        names = {one.machine or one.name for listing in listings for one in listing.items}
        names |= {one.hostname for one in devices} | {one.description.rpartition(" ")[2] for one in keys}
        gone = frozenset(name for name in names - machines.keys() if name and journal.machine(name) is not None)
        open_keys, rotation, in_use = sources.open_keys.all(), sources.rotations.last(), sources.keys.in_use()
        refs = [rotation.old, rotation.new] if rotation is not None and rotation.ended_at is None else []
        ids = {key.id for key in (*open_keys, *refs, in_use, sources.key_file()) if key is not None and key.id}
        hosts = {host.device_id for host in sources.hosts() if host.device_id}
        return Books(
            sources.cluster, frozenset(sources.pools()) | {m.pool for m in machines.values()}, machines, gone,
            frozenset(bake.name for bake in sources.bakes.active()), images,
            frozenset(hosts | {sources.head_device()} - {""}), frozenset(ids),
            frozenset(key.description for key in open_keys), sources.admin,
        )  # fmt: skip

    async def _tailnet(self) -> tuple[list[plan.Device], list[plan.Key], list[Thing], list[str]]:
        """Devices, keys, listings that failed, and notes."""
        api = self._sources.api
        if api is None:
            note = "the tailnet: meshd has no API credential (docs/tailnet.md), so devices and auth keys are not listed"
            return [], [], [], [note]
        failed: list[Thing] = []
        devices: list[plan.Device] = []
        keys: list[plan.Key] = []
        try:
            devices = [plan.Device(d.id, d.hostname, d.created) for d in await api.list_devices()]
        except TailnetError as error:
            failed.append(_unlisted(plan.DEVICE, error))
        try:
            keys = [plan.Key(k.id, k.description, k.created) for k in await api.living_keys()]
        except TailnetError as error:
            failed.append(_unlisted(plan.AUTH_KEY, error))
        return devices, keys, failed, []

    def _view(self, things: Sequence[Thing], notes: Sequence[str]) -> s.AuditView:
        now = self._clock.now()
        ordered = sorted(things, key=lambda t: (_ORDER[t.verdict], t.provider, t.kind, t.region, t.name, t.id))
        rows = [
            s.AuditRow(
                provider=t.provider, kind=t.kind, id=t.id, name=t.name, region=t.region,
                owner=t.owner.value if t.id else "", verdict=t.verdict.value, created_at=t.created_at,
                age_s=max(0.0, (now - t.created_at).total_seconds()) if t.created_at else None,
                usd_per_hour=round(t.usd_per_hour, 6) if t.usd_per_hour is not None else None, why=t.why, cure=t.cure,
            )
            for t in ordered[:ROWS_MAX]
        ]  # fmt: skip
        return s.AuditView(
            at=now, rows=rows, leaked=sum(t.verdict is Verdict.LEAKED for t in things),
            unknown=sum(t.verdict is Verdict.UNKNOWN for t in things), left_out=max(0, len(ordered) - ROWS_MAX),
            notes=list(notes),
        )  # fmt: skip


async def _billed(name: str, provider: Provider) -> Sequence[BilledListing]:
    if not isinstance(provider, Auditor):
        text = "its adapter cannot list what lies on the account"
        return [BilledListing(ProviderName(name), BilledKind.MACHINE, error=text)]
    try:
        return await provider.billed()
    except ProviderError as error:
        return [BilledListing(ProviderName(name), BilledKind.MACHINE, error=str(error))]


async def _images(name: str, provider: Provider) -> tuple[str, list[Image] | str]:
    """The images of this cluster, or why they could not be listed. A cloud that makes none has none."""
    if not isinstance(provider, ImageBaker):
        return name, []
    try:
        return name, list(await provider.images())
    except ProviderError as error:
        return name, str(error)


def _listings_of_images(
    name: str, found: list[Image] | str, others: Sequence[BilledListing]
) -> list[BilledListing]:  # fmt: skip
    """This cluster's images where the adapter lists images in no other way."""
    if found == [] or any(one.provider == name and one.kind is BilledKind.IMAGE for one in others):
        return []
    if isinstance(found, str):
        return [BilledListing(ProviderName(name), BilledKind.IMAGE, error=found)]
    return [plan.listing_of_images(name, found)]


def _unlisted(kind: str, error: TailnetError) -> Thing:
    return Thing(
        plan.TAILNET, kind, "", "", "", plan.Owner.FOREIGN, Verdict.UNKNOWN, why=f"it could not be listed: {error}",
        cure="`meshctl doctor` shows what the credential lacks",
    )  # fmt: skip
