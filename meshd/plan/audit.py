"""What lies on the accounts: whose each thing is, and whether anything was forgotten. PURE.

A thing's tag says whose it is; where there are no tags, its name does, if it has the form of this cluster's names and
one of its pools. An audit deletes nothing: it lists what is ours and not accounted for, with the command that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from shlex import quote

from meshd.model.ids import UNIQUE_LENGTH, parse_machine_name
from meshd.model.machine import Machine, Phase
from meshd.provider_api import Billed, BilledKind, BilledListing, Image, ImageState

TAILNET = "tailnet"
"""In the place of a provider's name."""
DEVICE = "device"
AUTH_KEY = "auth_key"
KEY_DESCRIPTION_MAX = 50
_MESHD = re.compile(rf"[a-z][a-z0-9-]*-[a-z][a-z0-9-]*-[0-9]+-[a-z0-9]{{{UNIQUE_LENGTH}}}")
"""The form of a machine's name, of whichever cluster."""


class Owner(StrEnum):
    """Whose a thing is."""

    OURS = "ours"
    OTHER = "other"
    """Another cluster of meshd has made it."""
    FOREIGN = "foreign"


class Verdict(StrEnum):
    """What becomes of a thing."""

    OURS = "ours"
    """This cluster's, and accounted for."""
    LEAKED = "leaked"
    """This cluster's, and nothing knows it any more: somebody has to end it."""
    FOREIGN = "foreign"
    """Not this cluster's. It is listed, and never touched."""
    UNKNOWN = "unknown"
    """A listing failed, so nothing is known."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing, or one listing that failed.

    Attributes:
        provider: or TAILNET.
        kind: of BilledKind, DEVICE or AUTH_KEY.
        id: "" for a listing that failed.
        machine: what it was made for; see Billed.
        why: why it has its verdict, for people.
        cure: a command that ends it; "" unless it leaked.
    """

    provider: str
    kind: str
    id: str
    name: str
    region: str
    owner: Owner
    verdict: Verdict
    created_at: datetime | None = None
    usd_per_hour: float | None = None
    why: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the tailnet."""

    id: str
    hostname: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class Key:
    """A living auth key of the tailnet."""

    id: str
    description: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class Books:
    """What meshd knows.

    Attributes:
        cluster: its name.
        pools: of the settings, and of all machines that are not GONE.
        machines: those that are not GONE, by name.
        gone: names that the journal knows, of machines that are GONE.
        bakes: names of images that are being made.
        images: of this cluster, by provider and id; a provider is missing where they could not be listed.
        devices: ids of the devices of hosts, invited machines and heads.
        keys: ids of the auth keys that may still be used.
        descriptions: with which keys were minted whose id is not known.
        admin: how a command begins that speaks with the tailnet's API; "" for none.
    """

    cluster: str
    pools: frozenset[str] = frozenset()
    machines: Mapping[str, Machine] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    bakes: frozenset[str] = frozenset()
    images: Mapping[str, Mapping[str, Image]] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    descriptions: frozenset[str] = frozenset()
    admin: str = ""

    def owner_by_name(self, name: str) -> Owner:
        """Whose a machine of this name is. Another cluster's name may begin like this one's: its pools differ."""
        slot = parse_machine_name(self.cluster, name)
        if name in self.machines or name in self.gone or name in self.bakes:
            return Owner.OURS
        if slot is not None and slot.rpartition("-")[0] in self.pools:
            return Owner.OURS
        return Owner.OTHER if _MESHD.fullmatch(name) else Owner.FOREIGN

    def owner(self, one: Billed) -> Owner:
        """Whose a thing is."""
        if one.cluster:
            return Owner.OURS if one.cluster == self.cluster else Owner.OTHER
        return self.owner_by_name(one.machine or one.name)


def audited(listings: Iterable[BilledListing], books: Books) -> list[Thing]:
    """The things of the clouds, each with its verdict; a row for each listing that failed."""
    listings = list(listings)
    items = [one for listing in listings for one in listing.items]
    machines = {(m.provider, m.id): _machine(m, books) for m in items if m.kind is BilledKind.MACHINE}
    found = [
        Thing(
            one.provider, one.kind.value, "", "", one.region, Owner.FOREIGN, Verdict.UNKNOWN,
            why=f"it could not be listed: {one.error}", cure="`meshctl doctor` shows what the credentials lack",
        )
        for one in listings if one.error
    ]  # fmt: skip
    unread = {listing.provider for listing in listings if listing.kind is BilledKind.MACHINE and listing.error}
    for one in items:
        holder = machines.get((one.provider, one.attached_to)) if one.attached_to else None
        if one.kind is BilledKind.MACHINE:
            found.append(machines[one.provider, one.id])
        elif holder is not None:
            found.append(_attached(one, holder))
        elif one.attached_to and one.provider in unread:
            found.append(_thing(one, books.owner(one), Verdict.UNKNOWN, "its machine could not be listed"))
        elif one.kind in {BilledKind.IMAGE, BilledKind.SNAPSHOT}:
            found.append(_image(one, books))
        else:
            found.append(_loose(one, books))
    return found


def _thing(one: Billed, owner: Owner, verdict: Verdict, why: str = "") -> Thing:
    # What a call for a gang made may have the gang's name; which machine it is, is known all the same.
    name = one.machine or one.name if one.kind is BilledKind.MACHINE else one.name or one.machine
    return Thing(
        one.provider, one.kind.value, one.id, name, one.region, owner, verdict, one.created_at,
        one.usd_per_hour, why, one.cure if verdict is Verdict.LEAKED else "",
    )  # fmt: skip


def _not_ours(one: Billed, owner: Owner) -> Thing:
    why = f"it is cluster {one.cluster}'s" if owner is Owner.OTHER and one.cluster else ""
    return _thing(one, owner, Verdict.FOREIGN, why)


def _machine(one: Billed, books: Books) -> Thing:
    owner = books.owner(one)
    known = books.machines.get(one.machine)
    if any((m.provider, m.instance_id) == (one.provider, one.id) for m in books.machines.values()):
        return _thing(one, Owner.OURS, Verdict.OURS)
    if owner is not Owner.OURS:
        return _not_ours(one, owner)
    if known is not None and known.provider == one.provider and not known.instance_id:
        return _thing(one, owner, Verdict.OURS, "its create call is not settled yet")
    why = "the journal does not know it"
    if known is not None:
        why = f"the journal has {known.instance_id} under its name"
    elif one.machine in books.gone:
        why = "the journal says that it is gone"
    return _thing(one, owner, Verdict.LEAKED, f"{why}; meshd ends it too, unless it is frozen")


def _attached(one: Billed, holder: Thing) -> Thing:
    """It goes the way of the machine that has it."""
    cure = holder.cure if holder.verdict is Verdict.LEAKED else ""
    thing = _thing(one, holder.owner, holder.verdict, f"machine {holder.name or holder.id} has it")
    return replace(thing, cure=cure)


def _loose(one: Billed, books: Books) -> Thing:
    """What no listed machine has: a volume, an address, a script."""
    owner = books.owner(one)
    if owner is not Owner.OURS:
        return _not_ours(one, owner)
    machine = books.machines.get(one.machine or one.name)
    if machine is not None and machine.phase is not Phase.GONE:
        return _thing(one, owner, Verdict.OURS, f"it is {machine.name}'s")
    return _thing(one, owner, Verdict.LEAKED, "its machine is gone")


def _image(one: Billed, books: Books) -> Thing:
    owner = books.owner(one)
    if owner is not Owner.OURS:
        return _not_ours(one, owner)
    listed = books.images.get(one.provider)
    if listed is None:
        return _thing(one, owner, Verdict.UNKNOWN, "the images of this cluster could not be listed")
    image = listed.get(one.id) or next((i for i in listed.values() if one.machine and i.name == one.machine), None)
    if one.machine in books.bakes:
        return _thing(one, owner, Verdict.OURS, "its image is being made")
    if image is None or image.state in {ImageState.LEFTOVER, ImageState.FAILED}:
        why = "nothing boots from it: it is what is left of an image"
        return _thing(one, owner, Verdict.LEAKED, f"{why}; meshd deletes it too, unless it is frozen")
    return _thing(one, owner, Verdict.OURS)


def listing_of_images(provider: str, images: Sequence[Image]) -> BilledListing:
    """The images of a cloud whose adapter lists them in no other way."""
    name = images[0].provider if images else provider
    return BilledListing(
        name,  # type: ignore[arg-type]
        BilledKind.IMAGE,
        items=tuple(
            Billed(
                one.provider, BilledKind.IMAGE, one.id, one.name, one.region, machine=one.name,
                created_at=one.created_at,
                usd_per_hour=one.usd_per_month / 730 if one.usd_per_month is not None else None,
                cure="`meshctl image prune --all`",
            )
            for one in images
        ),
    )  # fmt: skip


def audited_devices(devices: Iterable[Device], books: Books) -> list[Thing]:
    """The devices of the tailnet."""
    found = []
    for one in devices:
        owner, verdict, why, cure = books.owner_by_name(one.hostname), Verdict.FOREIGN, "", ""
        if one.id in books.devices:
            owner, verdict = Owner.OURS, Verdict.OURS
        elif owner is Owner.OURS:
            verdict = Verdict.OURS if one.hostname in books.machines else Verdict.LEAKED
        if verdict is Verdict.LEAKED:
            why, cure = "its machine is gone", _delete(books, "device", one.id)
        found.append(
            Thing(TAILNET, DEVICE, one.id, one.hostname, "", owner, verdict, one.created_at, 0.0, why, cure)
        )  # fmt: skip
    return found


def audited_keys(keys: Iterable[Key], books: Books) -> list[Thing]:
    """The living auth keys of the tailnet. Who has one can join devices."""
    found = []
    for one in keys:
        known = one.id in books.keys or _plain(one.description) in set(map(_plain, books.descriptions))
        owner = Owner.OURS if known else _owner_of_key(one, books)
        verdict = Verdict.FOREIGN if owner is not Owner.OURS else Verdict.OURS if known else Verdict.LEAKED
        leaked = verdict is Verdict.LEAKED
        found.append(
            Thing(
                TAILNET, AUTH_KEY, one.id, one.description, "", owner, verdict, one.created_at, 0.0,
                "meshd minted it, and does not know it any more" if leaked else "",
                _delete(books, "key", one.id) if leaked else "",
            )
        )  # fmt: skip
    return found


def _owner_of_key(key: Key, books: Books) -> Owner:
    """By its description: `meshd CLUSTER`, `meshd CLUSTER ROTATION` or `meshd PURPOSE MACHINE`."""
    words = key.description.split()
    if words[:1] != ["meshd"] or len(words) < 2:
        return Owner.FOREIGN
    whose = words[-1]
    begun = any(whose.startswith(f"{books.cluster}-{pool}-") for pool in books.pools)
    ours = words[1] == books.cluster or begun or books.owner_by_name(whose) is Owner.OURS
    return Owner.OURS if ours else Owner.OTHER


def _plain(description: str) -> str:
    """As a control server keeps it."""
    return "".join(c if c.isalnum() or c in " -" else "-" for c in description)[:KEY_DESCRIPTION_MAX].strip()


def _delete(books: Books, what: str, thing: str) -> str:
    if not books.admin:
        return f"delete it in the tailnet's admin console ({what} {thing})"
    path = f"/api/v2/device/{thing}" if what == "device" else f"/api/v2/tailnet/-/keys/{thing}"
    return f'curl -X DELETE -u "$TAILSCALE_API_KEY:" {quote(books.admin + path)}'
