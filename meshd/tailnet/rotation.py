"""PURE: the rotation of the tailnet's auth key: its records and its legal moves.

Facts: no node is logged out when an auth key ends, but the old key then fails wherever it is still kept and used. A
node keeps its key in a file and uses it only when it has no identity. Control accepts the old and the new key side by
side. So the new key is proved first, then new machines get it, then every node, and only then the old key is revoked.

`rotation_settle` decides what the state of the nodes means, and `rotation_steps` what to do next. None has effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from meshd.errors import IllegalMove


class AuthKeyStage(StrEnum):
    """The stages of a rotation."""

    REVOKE_FIRST = "revoke_first"
    """Strangers may know the old key or a spare: that key and all spares are revoked before anything else."""
    MINT = "mint"
    PROVE = "prove"
    """A throw-away device joins with the new key."""
    SWITCH = "switch"
    """New machines get the new key from now on."""
    DISTRIBUTE = "distribute"
    """Nodes that can be reached get the new key, or a new spare if they joined with a key of their own."""
    REAUTH = "reauth"
    """Nodes log in again with the new key, a few at a time."""
    CONFIRM = "confirm"
    """The head waits until it sees what the nodes say."""
    HOLD = "hold"
    """All nodes that can be reached are confirmed. The old key stays valid for the others."""
    REVOKE = "revoke"
    DONE = "done"
    ROLLBACK = "rollback"
    """New machines and nodes get the old key back."""
    DISCARD = "discard"
    """The new key is revoked, if meshd minted it."""
    ABORTED = "aborted"


AT_NODES = frozenset({AuthKeyStage.DISTRIBUTE, AuthKeyStage.REAUTH, AuthKeyStage.CONFIRM, AuthKeyStage.HOLD})
"""The stages in which nodes change. Which of them it is follows from the nodes alone."""
ENDED = frozenset({AuthKeyStage.DONE, AuthKeyStage.ABORTED})

MOVES: dict[AuthKeyStage, frozenset[AuthKeyStage]] = {
    AuthKeyStage.REVOKE_FIRST: frozenset(
        {AuthKeyStage.MINT, AuthKeyStage.PROVE, AuthKeyStage.DISTRIBUTE, AuthKeyStage.DISCARD}
    ),
    AuthKeyStage.MINT: frozenset({AuthKeyStage.PROVE, AuthKeyStage.DISCARD}),
    AuthKeyStage.PROVE: frozenset({AuthKeyStage.SWITCH, AuthKeyStage.DISCARD}),
    AuthKeyStage.SWITCH: frozenset({AuthKeyStage.DISTRIBUTE, AuthKeyStage.ROLLBACK}),
    **dict.fromkeys(AT_NODES, AT_NODES | {AuthKeyStage.REVOKE, AuthKeyStage.ROLLBACK}),
    AuthKeyStage.REVOKE: AT_NODES | {AuthKeyStage.DONE, AuthKeyStage.ROLLBACK},
    AuthKeyStage.ROLLBACK: frozenset({AuthKeyStage.DISCARD}),
    AuthKeyStage.DISCARD: frozenset({AuthKeyStage.ABORTED}),
    AuthKeyStage.DONE: frozenset(),
    AuthKeyStage.ABORTED: frozenset(),
}


class NodeStage(StrEnum):
    """The stages of a node in a rotation."""

    WAITING = "waiting"
    """It does not hold the right key."""
    STORED = "stored"
    """It holds the right key: its agent has read it back and reported its sha256."""
    REAUTHENTICATING = "reauthenticating"
    """It has the order to log in again."""
    REAUTHENTICATED = "reauthenticated"
    """It says that it has logged in: new node key, online, no login error, same address."""
    CONFIRMED = "confirmed"
    """The head sees the same."""
    WAIVED = "waived"
    """The rotation does not wait for it, because a person said so."""
    GONE = "gone"
    """Its machine was given back."""


SETTLED = frozenset({NodeStage.CONFIRMED, NodeStage.WAIVED, NodeStage.GONE})
LOGGING_IN = frozenset({NodeStage.REAUTHENTICATING, NodeStage.REAUTHENTICATED})


class KeyOrigin(StrEnum):
    """Where the new key comes from."""

    MINTED = "minted"
    FILE = "file"
    NONE = "none"
    """There is none: no key is shared. Nodes get new spares, and may log in again, each with a key of its own."""


FIRST_STAGE = {
    KeyOrigin.MINTED: AuthKeyStage.MINT,
    KeyOrigin.FILE: AuthKeyStage.PROVE,
    KeyOrigin.NONE: AuthKeyStage.DISTRIBUTE,
}
"""The first stage of a rotation that does not revoke first."""


@dataclass(frozen=True, slots=True)
class KeyRef:
    """An auth key without its secret.

    Attributes:
        sha256: of the secret, as hexadecimal digits: two keys are the same when these are.
        id: the control server's, "" when not known.
        expires: None when not known.
        minted: meshd minted it, so meshd may revoke it when it is of no use.
    """

    sha256: str
    id: str = ""
    expires: datetime | None = None
    tags: tuple[str, ...] = ()
    minted: bool = False


@dataclass(frozen=True, slots=True)
class RotationNode:
    """A node that was launched with another key than the new one.

    Attributes:
        since: when it entered its stage.
        attempts: how many orders it got in this stage.
        failure: why the last attempt failed; "" when it did not.
        retry_at: no attempt before then.
        address: its tailnet address before it logged in again.
        node_key: its new public key, as its agent reported it.
        jobs: those on it when it got the order to log in again.
        gap_s: how long its login took.
    """

    slot: str
    stage: NodeStage
    since: datetime
    attempts: int = 0
    failure: str = ""
    retry_at: datetime | None = None
    address: str = ""
    node_key: str = ""
    jobs: tuple[str, ...] = ()
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A device that joined while strangers may have known the old key.

    Attributes:
        machine: the machine that it belongs to; "" for none.
    """

    device_id: str
    hostname: str
    address: str
    created: datetime | None
    machine: str = ""


@dataclass(frozen=True, slots=True)
class AuthKeyRotation:
    """One rotation, as the journal keeps it. Times are UTC.

    Attributes:
        reauth: nodes log in again with the new key.
        compromised: the old key is revoked first.
        source: where the new key comes from.
        leaked_at: devices that joined since then are listed; None: since the old key was made.
        old: the key that new machines got when the rotation began; None for none.
        new: the key that replaces it; None until it is made.
        asked_at: the time of the last order of this stage's step, which may have had its effect.
        attempts: how many orders there were.
        failure: why the last attempt failed; "" when it did not.
        retry_at: no attempt before then.
        aborted_by: who asked to take it back; "" for nobody.
        taken_back: why all keep, or get back, the old key; "" while they are to have the new one.
        warnings: what people should know and do.
    """

    id: str
    source: KeyOrigin
    stage: AuthKeyStage
    stage_since: datetime
    started_at: datetime
    by: str
    reason: str
    old: KeyRef | None
    new: KeyRef | None = None
    reauth: bool = False
    compromised: bool = False
    leaked_at: datetime | None = None
    asked_at: datetime | None = None
    attempts: int = 0
    failure: str = ""
    retry_at: datetime | None = None
    aborted_by: str = ""
    taken_back: str = ""
    ended_at: datetime | None = None
    warnings: tuple[str, ...] = ()
    newcomers: tuple[Newcomer, ...] = ()
    nodes: Mapping[str, RotationNode] = field(default_factory=dict)
    """By machine."""

    @property
    def ended(self) -> bool:
        """Nothing is left to do."""
        return self.stage in ENDED

    @property
    def switched(self) -> bool:
        """New machines may have the new key."""
        return self.stage not in {AuthKeyStage.REVOKE_FIRST, AuthKeyStage.MINT, AuthKeyStage.PROVE}

    @property
    def target(self) -> KeyRef | None:
        """The key that all hold in the end."""
        return self.old if self.taken_back else self.new

    @property
    def canary_lives(self) -> bool:
        """Some node has logged in again, and the head has seen it."""
        return any(node.stage is NodeStage.CONFIRMED and node.node_key for node in self.nodes.values())

    @property
    def may_be_revoked(self) -> bool:
        """The old key may be revoked already, so the rotation cannot be taken back."""
        first = self.compromised and (self.stage is not AuthKeyStage.REVOKE_FIRST or self.asked_at is not None)
        return first or (self.stage is AuthKeyStage.REVOKE and self.asked_at is not None)

    def moved(self, to: AuthKeyStage, now: datetime, **changes: object) -> AuthKeyRotation:
        """The rotation in another stage.

        Raises:
            IllegalMove: that stage does not follow the present one.
        """
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"rotation {self.id}: {self.stage} cannot become {to}")
        fresh: dict[str, object] = {"asked_at": None, "attempts": 0, "retry_at": None, "failure": ""}
        if to in ENDED:
            fresh["ended_at"] = now
        return replace(self, stage=to, stage_since=now, **{**fresh, **changes})  # type: ignore[arg-type]

    def attempt(self, machine: str) -> str:
        """The name of a node's present attempt to log in again."""
        return f"{self.id}-{self.nodes[machine].attempts}"

    def with_node(self, machine: str, node: RotationNode) -> AuthKeyRotation:
        """With another record of one node."""
        return replace(self, nodes={**self.nodes, machine: node})


def logs_in(rotation: AuthKeyRotation | None, machine: str, attempt: str) -> bool:
    """Whether a node is in this attempt to log in again now."""
    if rotation is None or rotation.ended or machine not in rotation.nodes:
        return False
    return rotation.nodes[machine].stage is NodeStage.REAUTHENTICATING and rotation.attempt(machine) == attempt


def begin(
    rotation_id: str,
    source: KeyOrigin,
    now: datetime,
    *,
    by: str,
    reason: str,
    old: KeyRef | None,
    new: KeyRef | None = None,
    reauth: bool = False,
    compromised: bool = False,
    leaked_at: datetime | None = None,
) -> AuthKeyRotation:
    """A new rotation, before its first step. `new` is known already when it comes from the file."""
    first = AuthKeyStage.REVOKE_FIRST if compromised else FIRST_STAGE[source]
    return AuthKeyRotation(
        rotation_id, source, first, now, now, by, reason, old, new, reauth=reauth or compromised,
        compromised=compromised, leaked_at=leaked_at,
    )  # fmt: skip


def why_not_abort(rotation: AuthKeyRotation) -> str:
    """Why it cannot be taken back any more; "" when it can."""
    if rotation.ended:
        return f"it has ended: {rotation.stage}"
    if rotation.may_be_revoked:
        return "the old key is revoked already, or about to be: there is nothing to go back to"
    if rotation.switched and rotation.old is None and rotation.source is not KeyOrigin.NONE:
        return "there was no key before it: there is nothing to go back to"
    return ""


def abort(rotation: AuthKeyRotation, by: str) -> AuthKeyRotation:
    """Ask to take it back. `settle` does so when no step is running. See `why_not_abort`."""
    return replace(rotation, aborted_by=by)


def waive(rotation: AuthKeyRotation, machine: str, by: str, now: datetime) -> AuthKeyRotation:
    """No longer wait for a node. It gets the key anyway when it returns."""
    node = replace(rotation.nodes[machine], stage=NodeStage.WAIVED, since=now, failure=f"waived by {by}", retry_at=None)
    return rotation.with_node(machine, node)
