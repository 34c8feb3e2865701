"""PURE: `tailscale status --json` and LocalAPI `status` (ipnstate.Status), `whois`, as meshd's own types.

Facts: tailscale 1.102 `ipn/ipnstate`, checked on recordings. The parser is lenient: unknown members are ignored,
missing ones take the value that claims least (not online, no address).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from meshd.errors import TailnetError
from meshd.model.observed import TailnetPeer, TailnetView
from meshd.plaintext import TEXT_MAX_CHARS, plain
from meshd.tailnet.fields import ITEMS_MAX, Json, first_ipv4, flag, moment, number, table, text, texts

RUNNING = "Running"
LOGIN_ERROR = "login error"


@dataclass(frozen=True, slots=True)
class TailnetTable:
    """What is kept from one message of tailscaled to the next: the view, and what later messages refer to.

    Attributes:
        backend: BackendState: NoState, NeedsLogin, NeedsMachineAuth, Stopped, Starting, Running.
        self_online: tailscaled holds its connection to the control server.
        health: tailscaled's own complaints, sorted.
        peers: by stable id.
        ids: stable id by NodeID: the bus names removed and patched peers by NodeID only.
        magic_dns_suffix: what the names of the tailnet's devices end with.
        self_name: this machine's whole name on the tailnet, without a dot at its end; "" without MagicDNS.
    """

    backend: str
    self_online: bool
    self_id: str
    self_tailnet_ip: str
    health: tuple[str, ...] = ()
    peers: Mapping[str, TailnetPeer] = field(default_factory=dict)
    ids: Mapping[int, str] = field(default_factory=dict)
    version: str = ""
    self_tags: tuple[str, ...] = ()
    self_key_expiry: datetime | None = None
    magic_dns_suffix: str = ""
    self_name: str = ""

    @property
    def login_errors(self) -> tuple[str, ...]:
        """Complaints that the control server has refused this node. Its backend may still say Running."""
        return tuple(line for line in self.health if LOGIN_ERROR in line.lower())

    @property
    def healthy(self) -> bool:
        """The backend runs, the control server is connected, and there is no login error."""
        return self.backend == RUNNING and self.self_online and not self.login_errors

    def view(self) -> TailnetView:
        """What the rest of meshd sees."""
        problems: list[str] = []
        if not self.healthy:
            if self.backend != RUNNING:
                problems.append(f"tailscaled is {self.backend or 'in an unknown state'}, not Running")
            elif not self.self_online:
                problems.append("this machine is not connected to the tailnet's control server")
            problems.extend(self.health)
        return TailnetView(
            self_tailnet_ip=self.self_tailnet_ip,
            self_id=self.self_id,
            healthy=self.healthy,
            problems=tuple(problems),
            peers=self.peers,
            self_key_expiry=self.self_key_expiry,
        )


def load_object(source: str | bytes, what: str) -> Json:
    """The JSON object in `source`.

    Raises:
        TailnetError: it is no JSON object; the message quotes none of it, for it may hold anything.
    """
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise TailnetError(f"{what} is not JSON ({len(source)} bytes): is this tailscale 1.60 or newer?") from error
    if not isinstance(found, dict):
        raise TailnetError(f"{what} is JSON of another kind than expected: {type(found).__name__}")
    return found


def parse_status(source: str | bytes | Json) -> TailnetTable:
    """Read an ipnstate.Status.

    Raises:
        TailnetError: not JSON, or no status (BackendState is missing): unknown is not empty.
    """
    status = source if isinstance(source, Mapping) else load_object(source, "tailscale's status")
    if "BackendState" not in status:
        raise TailnetError("tailscale's status has no BackendState: it cannot be read")
    own = table(status.get("Self"))
    peers: dict[str, TailnetPeer] = {}
    ids: dict[int, str] = {}
    for entry in map(table, table(status.get("Peer")).values()):
        peer = peer_from_status(entry)
        if not peer.id:
            continue
        peers[peer.id] = peer
        if node_id := number(entry, "NodeID"):
            ids[node_id] = peer.id
    return TailnetTable(
        backend=text(status, "BackendState"),
        self_online=flag(own, "Online"),
        self_id=text(own, "ID"),
        self_tailnet_ip=first_ipv4(texts(status, "TailscaleIPs") or texts(own, "TailscaleIPs")),
        health=tuple(sorted(texts(status, "Health"))),
        peers=peers,
        ids=ids,
        version=text(status, "Version"),
        self_tags=texts(own, "Tags"),
        self_key_expiry=moment(own, "KeyExpiry"),
        magic_dns_suffix=text(status, "MagicDNSSuffix"),
        self_name=text(own, "DNSName").rstrip(".").lower(),
    )


def peer_from_status(entry: Json) -> TailnetPeer:
    """An ipnstate.PeerStatus as a peer."""
    online = flag(entry, "Online")
    return TailnetPeer(
        id=text(entry, "ID"),
        hostname=text(entry, "HostName"),
        tailnet_ip=first_ipv4(texts(entry, "TailscaleIPs")),
        online=online,
        path=path_of(entry) if online else "",
        last_seen=None if online else moment(entry, "LastSeen"),
        tags=texts(entry, "Tags"),
        expired=flag(entry, "Expired"),
        key_expiry=moment(entry, "KeyExpiry"),
        node_key=text(entry, "PublicKey"),
    )


def path_of(entry: Json) -> str:
    """How packets reach a peer: "direct ADDR", "peer-relay ADDR", "relay CODE", "" when idle.

    `Relay` names the peer's home relay also when the path is direct, so it counts only for an active peer without an
    address of its own.
    """
    if address := text(entry, "CurAddr"):
        return f"direct {address}"
    if relay := text(entry, "PeerRelay"):
        return f"peer-relay {relay}"
    return f"relay {text(entry, 'Relay')}" if flag(entry, "Active") and text(entry, "Relay") else ""


def peer_from_node(node: Json) -> TailnetPeer:
    """A tailcfg.Node, as whois and the bus give it, as a peer. It does not have the path."""
    online = flag(node, "Online")
    return TailnetPeer(
        id=text(node, "StableID"),
        hostname=text(table(node.get("Hostinfo")), "Hostname"),
        tailnet_ip=first_ipv4(texts(node, "Addresses")),
        online=online,
        last_seen=None if online else moment(node, "LastSeen"),
        tags=texts(node, "Tags"),
        expired=flag(node, "Expired"),
        key_expiry=moment(node, "KeyExpiry"),
        node_key=text(node, "Key"),
    )


def parse_whois(source: str | bytes) -> TailnetPeer:
    """Read a whois answer.

    Raises:
        TailnetError: not JSON, or it names no device.
    """
    peer = peer_from_node(table(load_object(source, "tailscale's whois").get("Node")))
    if not peer.id:
        raise TailnetError("tailscale's whois names no device")
    return peer


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is behind an address, as the control server says.

    Attributes:
        device_id: the device's stable id.
        hostname: the device's own name for itself; it proves nothing.
        addresses: the device's, without prefix lengths.
        tags: a device with tags belongs to nobody: then `login` and `groups` are empty.
        login: the user's login name, e.g. `ann@example.com`.
        groups: those of the user's groups that the control server tells this machine. Tailscale does so for nodes with
            the attribute `tailscale.com/visible-groups`, from 1.98 on.
        capabilities: the names of what the tailnet's policy grants the device on this machine (`app` of `grants`).
    """

    device_id: str
    hostname: str
    addresses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    login: str = ""
    groups: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def parse_identity(source: str | bytes) -> Identity:
    """Read a whois answer (apitype.WhoIsResponse).

    Raises:
        TailnetError: not JSON, or it names no device.
    """
    answer = load_object(source, "tailscale's whois")
    node, profile = table(answer.get("Node")), table(answer.get("UserProfile"))
    if not text(node, "StableID"):
        raise TailnetError("tailscale's whois names no device")
    tags = texts(node, "Tags")
    return Identity(
        device_id=text(node, "StableID"), hostname=text(table(node.get("Hostinfo")), "Hostname"),
        addresses=tuple(one.partition("/")[0] for one in texts(node, "Addresses")), tags=tags,
        login="" if tags else text(profile, "LoginName"), groups=() if tags else texts(profile, "Groups"),
        capabilities=tuple(plain(name, TEXT_MAX_CHARS) for name in islice(table(answer.get("CapMap")), ITEMS_MAX)),
    )  # fmt: skip
