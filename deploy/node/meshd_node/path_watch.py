"""Measures the tailnet paths to the head and to the other nodes of the pool: direct or relayed, and the round trip.

A thread does it, so no poll waits for an answer. A measurement is at most four disco pings; no data is transferred. A
ping opens an idle path and keeps it open for 45 s, which costs 30 packets of 145 bytes, so measurements are few:

- the head: every 60 s while its path is direct, since the agent's poll keeps that path open anyway. After each
  measurement that is not direct the next one comes sooner: after 1, 2, 4 ... 60 s, because a relayed path often becomes
  direct some seconds later;
- other nodes: one every 30 s at most, in turn, and each of them at most once in 10 minutes.

Facts, measured with tailscale 1.102, the same with a TUN device and in user space: the first ping of an idle path may
come back over a relay although the next one is direct. When UDP is blocked, pings of a direct path stay without an
answer for up to 7 s, then they come back over the relay. When UDP works again, the first or second ping is direct.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .backoff import Backoff, jitter
from .hosts import read_block
from .node import Node
from .tailscale import Tailscale, TailscaleFault

HEAD_FIRST_S = 1.0
HEAD_EVERY_S = 60.0
PEER_EVERY_S = 30.0
PEER_AGAIN_S = 600.0
NOT_JOINED_S = 0.2
"""Short, so that the first poll after the join has a measurement. Nothing is asked meanwhile."""

PING_S = 1.5
PAUSES_S = (0.0, 0.2, 0.5, 1.0)
"""Before each ping of a measurement, at most. It ends with the second direct answer."""
DIRECT_ENOUGH = 2
"""On a busy machine a single round trip may be many times too long."""
AFTER_DIRECT_S = 0.02
SILENCES_MAX = 2
"""A measurement ends after this many pings without an answer."""

FIRST_HOLD_S = 2.0
HOLD_SLACK_S = 1.0
NAMES_MAX = 8
PEERS_MAX = 1024
RELAY_CHARS_MAX = 40
RTT_MAX_S = 60.0
AGE_MAX_S = 86400.0
"""The head refuses polls with larger values (meshd/api/node_schema.py)."""


class Path(NamedTuple):
    """How a peer was reached: `kind` is "direct", "peer-relay" or "derp"; `relay` is the code of the DERP region."""

    kind: str
    relay: str
    rtt_s: float

    @property
    def direct(self) -> bool:
        """Whether no relay was in between."""
        return self.kind == "direct"


class Measured(NamedTuple):
    """A measurement of one peer: `path` is None when it did not answer; `at_s` by the monotonic clock."""

    path: Path | None
    at_s: float


def read_pong(answer: dict[str, Any]) -> Path | None:
    """PURE: the path in tailscaled's answer to a disco ping (ipnstate.PingResult); None when it has none."""
    seconds = answer.get("LatencySeconds")
    if answer.get("Err") or isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    if not 0 <= seconds <= RTT_MAX_S:
        return None
    if answer.get("PeerRelay"):
        return Path("peer-relay", "", float(seconds))
    if answer.get("Endpoint"):
        return Path("direct", "", float(seconds))
    if answer.get("DERPRegionID"):
        code = str(answer.get("DERPRegionCode") or answer["DERPRegionID"])
        return Path("derp", re.sub(r"[^!-~]", "?", code)[:RELAY_CHARS_MAX], float(seconds))
    return None


def best(paths: list[Path]) -> Path | None:
    """PURE: the path of the best kind, with its shortest round trip; None of none."""
    order = ("direct", "peer-relay", "derp")
    return min(paths, key=lambda path: (order.index(path.kind), path.rtt_s), default=None)


def pool_peers(slot: str, roster: dict[str, str]) -> dict[str, str]:
    """PURE: the other nodes of this slot's pool, name to address, in the order of their numbers, from its own on.

    Each node begins with the one after itself, so that many nodes which start together do not all ask the same one.
    """
    pool, _, own = slot.rpartition("-")
    if not pool or not own.isdigit():
        return {}
    found: list[tuple[bool, int, str]] = []
    for name in roster:
        head, _, number = name.rpartition("-")
        if head == pool and number.isdigit() and name != slot:
            found.append((int(number) < int(own), int(number), name))
    return {name: roster[name] for _, _, name in sorted(found)[:PEERS_MAX]}


def _median_rtt_s(paths: list[Path]) -> float | None:
    if not paths:
        return None
    from statistics import median  # here: its import takes long, and no join needs it

    return round(median(path.rtt_s for path in paths), 6)


class PathWatch:
    """The watch. Its thread ends with the process.

    Args:
        node: this machine.
        monotonic: seconds.
        sleep: waits between two pings.
        spread: returns a random factor for pauses.
    """

    def __init__(
        self,
        node: Node,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        spread: Callable[[], float] = jitter,
    ) -> None:
        self._node = node
        self._tailscale = Tailscale(node.paths.tailscaled_socket)
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._head: Measured | None = None
        self._peers: dict[str, tuple[str, Measured]] = {}
        self._backoff = Backoff(HEAD_FIRST_S, HEAD_EVERY_S, spread)
        self._next_head_s = self._next_peer_s = float("-inf")

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="path watch", daemon=True).start()

    def look(self) -> float:
        """Measure what is due. Returns the seconds until the next measurement."""
        head = self._node.state.conf_server.rpartition(":")[0].strip("[]")
        if not self._node.state.joined or not head or self._node.state.left:
            return NOT_JOINED_S
        if self._monotonic() >= self._next_head_s:
            self._look_at_head(head)
        if self._monotonic() >= self._next_peer_s:
            self._look_at_a_peer()
            self._next_peer_s = self._monotonic() + PEER_EVERY_S
        return max(0.1, min(self._next_head_s, self._next_peer_s) - self._monotonic())

    def report(self) -> dict[str, Any]:
        """The measurements, for the heartbeat."""
        now_s = self._monotonic()
        with self._lock:
            head, peers = self._head, {name: measured.path for name, (_, measured) in self._peers.items()}
        answered = [path for path in peers.values() if path is not None]
        direct = sum(path.direct for path in answered)
        report: dict[str, Any] = {
            "peers": {
                "direct": direct,
                "relayed": len(answered) - direct,
                "silent": len(peers) - len(answered),
                "rtt_s": _median_rtt_s(answered),
                "not_direct": [name for name, path in peers.items() if path is None or not path.direct][:NAMES_MAX],
            }
        }
        if head is not None and head.path is not None:
            report["head"] = {
                "kind": head.path.kind,
                "relay": head.path.relay,
                "rtt_s": round(head.path.rtt_s, 6),
                "age_s": round(min(max(0.0, now_s - head.at_s), AGE_MAX_S), 1),
            }
        return report

    def hold_s(self, most_s: float) -> float:
        """How long the head may hold a poll, so that it soon learns of a path that becomes direct; at most `most_s`."""
        with self._lock:
            head, next_s = self._head, self._next_head_s
        if head is None:
            return min(most_s, FIRST_HOLD_S)
        if head.path is None or head.path.direct:
            return most_s
        return min(most_s, max(HOLD_SLACK_S, next_s - self._monotonic() + HOLD_SLACK_S))

    def _look_at_head(self, head: str) -> None:
        path = self._measure(head)
        if path is not None and path.direct:
            self._backoff.reset()
            pause_s = HEAD_EVERY_S
        else:
            pause_s = self._backoff.next_s()
        with self._lock:
            if path is not None or self._head is None:  # else keep the last one, whose age grows
                self._head = Measured(path, self._monotonic())
            self._next_head_s = self._monotonic() + pause_s

    def _look_at_a_peer(self) -> None:
        """Measure the peer that was measured longest ago, and forget those that are gone or have another address."""
        try:
            text = self._node.paths.hosts.read_text("utf-8", "surrogateescape")
        except OSError:
            return
        peers = pool_peers(self._node.state.slot, read_block(text))
        with self._lock:
            self._peers = {
                name: (address, measured)
                for name, (address, measured) in self._peers.items()
                if peers.get(name) == address
            }
            last_s = {name: measured.at_s for name, (_, measured) in self._peers.items()}
        name = min(peers, key=lambda one: last_s.get(one, float("-inf")), default="")
        if not name or self._monotonic() - last_s.get(name, float("-inf")) < PEER_AGAIN_S:
            return
        path = self._measure(peers[name])
        with self._lock:
            self._peers[name] = (peers[name], Measured(path, self._monotonic()))

    def _measure(self, address: str) -> Path | None:
        """The best path of a few pings; None when none was answered."""
        found: list[Path] = []
        silences = direct = 0
        for pause_s in PAUSES_S:
            self._sleep(min(pause_s, AFTER_DIRECT_S) if direct else pause_s)
            try:
                path = read_pong(self._tailscale.ping(address, PING_S))
            except TailscaleFault:
                path = None
            if path is not None:
                found.append(path)
                direct += path.direct
            silences += path is None
            if silences >= SILENCES_MAX or direct >= DIRECT_ENOUGH:
                break
        return best(found)

    def _run(self) -> None:
        while True:
            time.sleep(self.look())
