"""Rotations of the auth key in the journal: one row for each rotation and for each of its nodes, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.obs.log import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal
from meshd.tailnet.rotation import AT_NODES, AuthKeyRotation, AuthKeyStage, RotationNode

_ROTATION: Final = TypeAdapter(AuthKeyRotation)
_NODE: Final = TypeAdapter(RotationNode)


class AuthRotations:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last = self._read_last()

    def last(self) -> AuthKeyRotation | None:
        """The newest rotation: the active one, if there is one. None: there never was one."""
        return self._last

    def put(self, rotation: AuthKeyRotation, at: datetime) -> AuthKeyRotation:
        """Write a new rotation, or what changed in the newest one. A change of its stage is an event."""
        before = self._last if self._last is not None and self._last.id == rotation.id else None
        nodes = _changed(before.nodes if before else {}, rotation.nodes)
        event = None
        if before is None or _is_event(before, rotation):
            fields = {"stage": rotation.stage.value, "rotation": rotation.id}
            event = NewEvent(at, EventKind.AUTH_KEY_ROTATION, _event_text(rotation), fields=fields)
        with self._journal.writing(event) as db:
            db.execute(
                "INSERT INTO auth_rotations (id, record) VALUES (?,?) "
                "ON CONFLICT (id) DO UPDATE SET record=excluded.record",
                (rotation.id, redact(_ROTATION.dump_json(replace(rotation, nodes={})).decode())),
            )
            db.executemany(
                "INSERT INTO auth_rotation_nodes (rotation, machine, record) VALUES (?,?,?) "
                "ON CONFLICT (rotation, machine) DO UPDATE SET record=excluded.record",
                [(rotation.id, machine, redact(_NODE.dump_json(node).decode())) for machine, node in nodes.items()],
            )
        self._last = rotation
        return rotation

    def _read_last(self) -> AuthKeyRotation | None:
        """The newest rotation that can be read. The rows of its nodes are dropped with one that cannot."""
        sift = self._journal.unreadable.sift
        while rows := self._journal.rows("SELECT rowid, id, record FROM auth_rotations ORDER BY rowid DESC LIMIT 1"):
            nodes = self._journal.rows(
                "SELECT rowid, machine, record FROM auth_rotation_nodes WHERE rotation = ?", rows[0][1]
            )
            try:
                rotation = _ROTATION.validate_json(rows[0][2])
            except ValueError:
                list(sift("auth_rotation_nodes", nodes, _unwanted))
                list(sift("auth_rotations", rows, _ROTATION.validate_json))
                continue
            return replace(rotation, nodes=dict(sift("auth_rotation_nodes", nodes, _NODE.validate_json)))
        return None


def _unwanted(_record: str) -> RotationNode:
    raise ValueError("its rotation cannot be read")


def _changed(before: Mapping[str, RotationNode], after: Mapping[str, RotationNode]) -> dict[str, RotationNode]:
    return {machine: node for machine, node in after.items() if before.get(machine) is not node}


def _is_event(before: AuthKeyRotation, after: AuthKeyRotation) -> bool:
    """Not when a node that returns takes the rotation back to a stage that it had been in."""
    back = before.stage in AT_NODES and after.stage in {AuthKeyStage.DISTRIBUTE, AuthKeyStage.CONFIRM}
    return before.stage is not after.stage and not back


def _event_text(rotation: AuthKeyRotation) -> str:
    words = f"rotation {rotation.id} of the auth key: {rotation.stage.value}"
    if rotation.taken_back:
        return f"{words}: {rotation.taken_back}"
    return f"{words}, {rotation.reason}" if rotation.stage_since == rotation.started_at else words
