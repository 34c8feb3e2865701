"""The rotation of the munge key: `meshctl rotate-key --munge`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, Name, Part, Request


class MungeNodeRow(Part):
    """A node in a rotation of the munge key.

    Attributes:
        key: fingerprint of the key in place there, as its agent last reported it; "" when not known.
        state: `waiting`, `staged`, `switched`, `confirmed`, `waived`, `offline` (it gets the key when it returns) or
            `silent` (it cannot be reached, though Slurm counts on it).
        reason: what the rotation waits for there; "" for nothing.
    """

    machine: str
    slot: str
    key: str = ""
    state: str
    reason: str = ""


class MungeRotationView(Document):
    """The active rotation of the munge key, or the last one, or none: then `id` is "".

    Attributes:
        key: fingerprint of the key that joining machines get now.
        stage: generate, stage, switch, verify, return, check, done or aborted.
        active: it has not ended.
        switch_at: when all nodes change the key.
        failure: what it waits for now; "" while it advances.
        taken_back: why the old key stays or comes back; "" if it does not.
        longest_away_ms: the longest time that munged was away on one machine.
        spread_ms: from the first munged that stopped to the last that came back.
        steps: of a dry run: what would be done.
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
        machines: the rotation does not wait for these; each may be a slot.
    """

    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()


class MungeRotationRequest(Request):
    """Deprecated: rotate the munge key, take a rotation back, or stop waiting for some machines.

    Attributes:
        machines: the rotation does not wait for these; each may be a slot.
        dry_run: with `begin`: the answer says what would be done, and nothing changes.
    """

    action: Literal["begin", "abort", "waive"] = "begin"
    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    dry_run: bool = False

    def only_looks(self) -> bool:
        """A dry run of the beginning; taking back and waiving have none."""
        return self.dry_run and self.action == "begin"
