"""PURE: what a rotation of the auth key is told of the machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A machine that may hold an auth key, as it is known now.

    Attributes:
        sha256: of the key that it was born with or that it last told to hold; "" when not known.
        reachable: its agent speaks with the head.
        jobs: those that hold it.
        node_key: its public key as the head's tailscaled sees it.
        online: the head's tailscaled sees it online.
        reauth_problem: why it cannot log in anew; "" when it can.
        own_key: it was born with a key of its own and keeps none but a spare: it is given one when it logs in anew.
        spare_at: when the spare that it holds was asked for; None when it holds none.
        born_at: when its create call was made; None when not known.
    """

    slot: str
    sha256: str = ""
    reachable: bool = False
    address: str = ""
    jobs: tuple[str, ...] = ()
    node_key: str = ""
    online: bool = False
    reauth_problem: str = ""
    own_key: bool = False
    spare_at: datetime | None = None
    born_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What is known now.

    Attributes:
        nodes: every machine that was launched and is not on its way out, by name.
        jobs_known: Slurm can be read: else nobody knows which nodes work.
        peers_known: the head's tailscaled can be read and believed.
        in_use: sha256 of the key that launches have.
    """

    nodes: Mapping[str, SeenNode]
    jobs_known: bool = True
    peers_known: bool = True
    in_use: str = ""
