"""PURE: the rotation of the tailnet's auth key: its records, its legal moves, and what each step's end makes of them.

Facts: an auth key's end logs no node out, but every place that still holds the old key fails at its next use. A node
keeps its key in a file and passes it only when it has no identity; control accepts old and new side by side. So the
new key is proved first, given to whoever is born from now on, then to every node, and only then the old one is revoked.

What is seen of the nodes is judged in `rotation_settle`, what is to be done next in `rotation_steps`; none of them does
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from meshd.errors import IllegalMove


class AuthKeyStage(StrEnum):
    """Where a rotation stands."""

    REVOKE_FIRST = "revoke_first"
    """The old key, or a spare, is known to strangers: it is revoked before anything else, and so are all spares."""
    MINT = "mint"
    PROVE = "prove"
    """A throw-away device joins with the new key."""
    SWITCH = "switch"
    """Machines that are launched from now on get the new key."""
    DISTRIBUTE = "distribute"
    """Nodes that can be reached are given the new key, and those that had keys of their own a new spare."""
    REAUTH = "reauth"
    """Nodes log in anew with it, a few at a time."""
    CONFIRM = "confirm"
    """The head must see what the nodes say."""
    HOLD = "hold"
    """All that can be reached are confirmed; the old key lives on for the others."""
    REVOKE = "revoke"
    DONE = "done"
    ROLLBACK = "rollback"
    """Launches and nodes get the old key back."""
    DISCARD = "discard"
    """A minted new key is revoked."""
    ABORTED = "aborted"


AT_NODES = frozenset({AuthKeyStage.DISTRIBUTE, AuthKeyStage.REAUTH, AuthKeyStage.CONFIRM, AuthKeyStage.HOLD})
"""In these stages nodes are worked on; which of them it is follows from the nodes alone."""
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
    """Where a node stands in a rotation."""

    WAITING = "waiting"
    """It does not hold the key that it shall hold."""
    STORED = "stored"
    """It holds the key: its agent read it back and told its sha256."""
    REAUTHENTICATING = "reauthenticating"
    """It was told to log in anew."""
    REAUTHENTICATED = "reauthenticated"
    """It says that it has: new node key, online, no login error, same address."""
    CONFIRMED = "confirmed"
    """The head sees the same."""
    WAIVED = "waived"
    """Somebody said that it is not waited for."""
    GONE = "gone"
    """Its machine was given back meanwhile."""


SETTLED = frozenset({NodeStage.CONFIRMED, NodeStage.WAIVED, NodeStage.GONE})
LOGGING_IN = frozenset({NodeStage.REAUTHENTICATING, NodeStage.REAUTHENTICATED})


class KeyOrigin(StrEnum):
    """Where the new key comes from."""

    MINTED = "minted"
    FILE = "file"
    NONE = "none"
    """There is none: no machine shares a key. Nodes get new spares, and may log in, each with a key of its own."""


FIRST_STAGE = {
    KeyOrigin.MINTED: AuthKeyStage.MINT,
    KeyOrigin.FILE: AuthKeyStage.PROVE,
    KeyOrigin.NONE: AuthKeyStage.DISTRIBUTE,
}
"""Where a rotation begins that does not revoke first."""


@dataclass(frozen=True, slots=True)
class KeyRef:
    """An auth key without its secret.

    Attributes:
        sha256: of the secret, as hexadecimal digits: two keys are the same when these are.
        id: the control server's, "" when not known.
        expires: None when not known.
        minted: meshd made it, so meshd may revoke it when it turns out to be of no use.
    """

    sha256: str
    id: str = ""
    expires: datetime | None = None
    tags: tuple[str, ...] = ()
    minted: bool = False


@dataclass(frozen=True, slots=True)
class RotationNode:
    """A node that was born with another key than the new one.

    Attributes:
        since: when it entered its stage.
        attempts: how often it was told to do what its stage leads to.
        failure: why the last attempt failed; "" while all is well.
        retry_at: it is left alone until then.
        address: its tailnet address before it logged in anew.
        node_key: the public key that it has now, by its own word.
        jobs: those on it when it was told to log in anew.
        gap_s: how long its own login took.
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
        machine: ours behind it; "" when it is nobody's.
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
        reauth: nodes log in anew with the new key.
        compromised: the old key is revoked first.
        leaked_at: devices born since then are listed; None: since the old key was made.
        old: the key that launches had when it began; None when there was none.
        new: the key that they shall have; None until it is made.
        asked_at: the effect of this stage was asked for then, and may have happened.
        attempts: how often it was asked for.
        failure: why the last attempt failed; "" while all is well.
        retry_at: no attempt before then.
        aborted_by: who asked for the way back; "" while nobody did.
        taken_back: why launches and nodes keep, or get back, the old key; "" while they shall have the new one.
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
        """Nothing is left to be done."""
        return self.stage in ENDED

    @property
    def switched(self) -> bool:
        """Launches may have the new key."""
        return self.stage not in {AuthKeyStage.REVOKE_FIRST, AuthKeyStage.MINT, AuthKeyStage.PROVE}

    @property
    def target(self) -> KeyRef | None:
        """The key that all shall hold in the end."""
        return self.old if self.taken_back else self.new

    @property
    def canary_lives(self) -> bool:
        """Some node has logged in anew, and the head has seen it."""
        return any(node.stage is NodeStage.CONFIRMED and node.node_key for node in self.nodes.values())

    @property
    def may_be_revoked(self) -> bool:
        """The old key may be revoked already, so there is no way back."""
        first = self.compromised and (self.stage is not AuthKeyStage.REVOKE_FIRST or self.asked_at is not None)
        return first or (self.stage is AuthKeyStage.REVOKE and self.asked_at is not None)

    def moved(self, to: AuthKeyStage, now: datetime, **changes: object) -> AuthKeyRotation:
        """In another stage.

        Raises:
            IllegalMove: it does not follow the present one.
        """
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"rotation {self.id}: {self.stage} cannot become {to}")
        fresh: dict[str, object] = {"asked_at": None, "attempts": 0, "retry_at": None, "failure": ""}
        if to in ENDED:
            fresh["ended_at"] = now
        return replace(self, stage=to, stage_since=now, **{**fresh, **changes})  # type: ignore[arg-type]

    def attempt(self, machine: str) -> str:
        """The name of a node's present try to log in anew."""
        return f"{self.id}-{self.nodes[machine].attempts}"

    def with_node(self, machine: str, node: RotationNode) -> AuthKeyRotation:
        """With another record of one node."""
        return replace(self, nodes={**self.nodes, machine: node})


def logs_in(rotation: AuthKeyRotation | None, machine: str, attempt: str) -> bool:
    """Whether a node is told to log in anew, by this name of its try, just now."""
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
    """A rotation before its first step. `new` is there already when it comes from a file."""
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
    """Ask for the way back; `settle` takes it when nothing is under way. See `why_not_abort`."""
    return replace(rotation, aborted_by=by)


def waive(rotation: AuthKeyRotation, machine: str, by: str, now: datetime) -> AuthKeyRotation:
    """Do not wait for a node any more. It gets the key all the same when it returns."""
    node = replace(rotation.nodes[machine], stage=NodeStage.WAIVED, since=now, failure=f"waived by {by}", retry_at=None)
    return rotation.with_node(machine, node)
