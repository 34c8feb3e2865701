"""The rotation of the munge key: `meshctl rotate-key --munge`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, Name, Part, Request


class MungeNodeRow(Part):
    """A node in a rotation of the munge key.

    Attributes:
        key: fingerprint of the key in place there, as its agent told last; "" when not known.
        state: `waiting`, `staged`, `switched`, `confirmed`, `waived`, `offline` (it gets the key when it returns) or
            `silent` (it cannot be reached, though Slurm counts on it).
        reason: what it is waited for; "" when nothing.
    """

    machine: str
    slot: str
    key: str = ""
    state: str
    reason: str = ""


class MungeRotationView(Document):
    """The rotation of the munge key that is under way, or the last one, or none: then `id` is "".

    Attributes:
        key: fingerprint of the key that machines get which join now.
        stage: generate, stage, switch, verify, return, check, done or aborted.
        active: it is under way.
        switch_at: the moment at which all change.
        failure: what it waits for just now; "" while it gets on.
        taken_back: why the old key stays or comes back; "" while it does not.
        longest_away_ms: how long munged was away where it took longest.
        spread_ms: from the first munged that stopped to the last that came back.
        steps: what would be done, of a dry run.
    """

    at: AwareDatetime
    key: str = ""
    id: str = ""
    stage: str = ""
    stage_since: AwareDatetime | None = None
    active: bool = False
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    by: str = ""
    old: str = ""
    new: str = ""
    switch_at: AwareDatetime | None = None
    failure: str = ""
    taken_back: str = ""
    longest_away_ms: float = 0.0
    spread_ms: float = 0.0
    nodes: list[MungeNodeRow] = []
    steps: list[str] = []


class RotateMungeKeyRequest(DryRunRequest):
    """Rotate the munge key.

    Attributes:
        machines: not waited for; each may be a slot.
    """

    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()


class MungeRotationRequest(Request):
    """Deprecated: rotate the munge key, take a rotation back, or stop waiting for some machines.

    Attributes:
        machines: not waited for; each may be a slot.
        dry_run: with `begin`: only answer what would be done.
    """

    action: Literal["begin", "abort", "waive"] = "begin"
    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    dry_run: bool = False

    def only_looks(self) -> bool:
        """A dry run of the beginning; taking back and waiving have none."""
        return self.dry_run and self.action == "begin"
