"""Starts the WireGuard sessions that a new node key needs: with this machine's peers after its own login, and with a
node that shares a job with this one and has a new node key.

Facts (wireguard-go device/send.go, tailscale 1.102, measured): a peer drops a handshake initiation silently when it
does not know the sender's new node key, or does not use its own new key yet. Then the sender sends no other initiation
for 5 s (RekeyTimeout). This does not delay the peer. So each side starts a session when it knows the new key: the
first initiation of the last side to learn it is never lost.
"""

from __future__ import annotations

import time

from .tailscale import Tailscale

PRIME_AFTER_S = 0.25
"""The peer may need a moment to learn the new key, or to use it."""
PRIME_THREADS = 32
PRIME_TRIES = 3
PRIME_S = 0.5
KNOWN_S = 5.0
STEP_S = 0.05


def prime_sessions(tailscale: Tailscale, addresses: list[str]) -> None:
    """Start sessions after a login of this machine. A silent peer is away, or starts the session itself."""
    if not addresses:
        return
    from concurrent.futures import ThreadPoolExecutor  # here: its import takes long, and no join needs it

    time.sleep(PRIME_AFTER_S)
    with ThreadPoolExecutor(PRIME_THREADS) as pool:
        list(pool.map(lambda address: _prime(tailscale, address), addresses))


def prime_session(tailscale: Tailscale, address: str, node_key: str) -> bool:
    """Start a session after a login of another node. Returns whether that node answered.

    It waits until this machine knows the new key: before, packets would use the old session and prove nothing.

    Args:
        tailscale: this machine's tailscaled.
        address: the other node's.
        node_key: the other node's new key.
    """
    deadline = time.monotonic() + KNOWN_S
    while tailscale.key_of(address) != node_key:
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_S)
    time.sleep(PRIME_AFTER_S)
    return _prime(tailscale, address)


def open_paths(tailscale: Tailscale, addresses: list[str]) -> None:
    """Start sessions after a start of tailscaled: the first packet of a connection may find no path yet."""
    for address in addresses:
        _prime(tailscale, address)


def _prime(tailscale: Tailscale, address: str) -> bool:
    # the first try may still use the old key: tailscaled shows the new one before WireGuard has it
    return any(tailscale.prime_session(address, PRIME_S) for _ in range(PRIME_TRIES))
