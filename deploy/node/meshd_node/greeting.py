"""Begins the WireGuard sessions that a new node key needs: with the peers of this machine after its own login, and with
a node of a job of this one that has logged in anew.

Facts (wireguard-go device/send.go, tailscale 1.102, measured): a handshake initiation that meets a side which does not
know the sender's new node key, or does not use its own yet, is dropped without a word, and its sender sends no other
for 5 s (RekeyTimeout), whatever it has to send. The other side is not held back by that. So each side greets when it
knows the new key: the first initiation of the one that is last to know it is never lost.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from .tailscale import Tailscale

GREET_AFTER_S = 0.25
"""The other side may still be about to learn of the new key, or to put it to use."""
GREETERS = 32
GREETINGS = 3
GREET_S = 0.5
KNOWN_S = 5.0
STEP_S = 0.05


def greet_peers(tailscale: Tailscale, addresses: list[str]) -> None:
    """After a login of this machine. One that does not answer is away, or greets when it learns of the new key."""
    if not addresses:
        return
    time.sleep(GREET_AFTER_S)
    with ThreadPoolExecutor(GREETERS) as pool:
        list(pool.map(lambda address: _greet(tailscale, address), addresses))


def greet_newcomer(tailscale: Tailscale, address: str, node_key: str) -> bool:
    """After a login of another node; whether it answered.

    Before its new key is known here a greeting would go over the old session, and prove nothing.

    Args:
        tailscale: this machine's.
        address: the other one's.
        node_key: its new one.
    """
    deadline = time.monotonic() + KNOWN_S
    while tailscale.key_of(address) != node_key:
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_S)
    time.sleep(GREET_AFTER_S)
    return _greet(tailscale, address)


def _greet(tailscale: Tailscale, address: str) -> bool:
    # the first may still go out with the old key: tailscaled tells of the new one before WireGuard has it
    return any(tailscale.greet(address, GREET_S) for _ in range(GREETINGS))
