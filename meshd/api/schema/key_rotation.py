"""The auth key and its rotation: `meshctl rotate-key`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, DryRunRequest, Name, Part, Request


class KeyRow(Part):
    """A key without its secret.

    Attributes:
        id: the control server's; "" when not known.
        sha256: the first 12 digits; two keys are the same when these are.
        minted: meshd made it.
    """

    id: str = ""
    sha256: str = ""
    expires: AwareDatetime | None = None
    tags: list[str] = []
    minted: bool = False


class RotationNodeRow(Part):
    """A node in a rotation.

    Attributes:
        state: `pending` (it cannot be reached, or has not joined yet), `waiting`, `stored`, `reauthenticating`,
            `reauthenticated`, `confirmed`, `failed` (it is tried again), `waived` or `gone`.
        reason: why it is not done; "" when it is.
        gap_s: how long its own login took.
    """

    machine: str
    slot: str
    state: str
    since: AwareDatetime
    reason: str = ""
    attempts: int = 0
    retry_at: AwareDatetime | None = None
    gap_s: float = 0.0


class NewcomerRow(Part):
    """A device that joined while strangers may have known the old key. `machine` is "" if it is no machine of meshd."""

    device_id: str
    hostname: str
    address: str = ""
    created: AwareDatetime | None = None
    machine: str = ""


class RotationView(Document):
    """The active rotation of the auth key, or the last one, or none: then `id` is "".

    Attributes:
        in_use: the key that launches have; None before the first.
        id: grows with time.
        stage: revoke_first, mint, prove, switch, distribute, reauth, confirm, hold, revoke, done, rollback, discard
            or aborted.
        active: it has not ended.
        source: `minted`, `file`, or `none` where no key is shared: nodes get new spare keys, or log in again.
        failure: why the last attempt of the stage failed; "" while all is well.
        taken_back: why the old key stays or comes back; "" if it does not.
        no_way_back: why it cannot be aborted; "" when it can.
        steps: of a dry run: what would be done.
        own_key_nodes: the slots whose machines joined with keys of their own. They keep only a spare key, which a
            rotation replaces.
    """

    at: AwareDatetime
    in_use: KeyRow | None = None
    own_key_nodes: list[str] = []
    id: str = ""
    stage: str = ""
    stage_since: AwareDatetime | None = None
    active: bool = False
    source: str = ""
    reauth: bool = False
    compromised: bool = False
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    by: str = ""
    reason: str = ""
    old: KeyRow | None = None
    new: KeyRow | None = None
    failure: str = ""
    retry_at: AwareDatetime | None = None
    taken_back: str = ""
    no_way_back: str = ""
    warnings: list[str] = []
    newcomers: list[NewcomerRow] = []
    nodes: list[RotationNodeRow] = []
    steps: list[str] = []


class RotateKeyRequest(DryRunRequest):
    """Rotate the auth key.

    Attributes:
        reauth: nodes also log in again with the new key.
        compromised: strangers may know the old key: revoke it first; implies `reauth`.
        leaked_at: list the devices that joined since then; None: since the key was made.
    """

    reauth: bool = False
    compromised: bool = False
    leaked_at: AwareDatetime | None = None


class AbortRotationRequest(Request):
    """Take the active rotation back."""


class WaiveRequest(Request):
    """The rotation no longer waits for a node. `machine` may be its slot."""

    machine: Name
