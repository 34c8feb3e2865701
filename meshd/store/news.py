"""Events as they are to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, Final

TEXT_MAX_CHARS: Final = 2000
FIELDS_MAX_CHARS: Final = 8000


class Origin(IntEnum):
    """Who caused an event. Each has its own share of the log, so that none pushes the others' events out."""

    MESHD = 0
    NODE = 1
    PEOPLE = 2


OF_PEOPLE: Final = frozenset({"target", "remove", "drain", "undrain", "rotation", "munge_key", "token", "journal"})
"""Kinds that belong to people's, however they came about: what was ordered, and where secrets changed."""


@dataclass(frozen=True, slots=True)
class News:
    """An event that is to be written; `machine` is "" when it is about none."""

    at: datetime
    kind: str
    text: str
    machine: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = Origin.MESHD

    @property
    def share(self) -> Origin:
        """Whose share of the log it is in."""
        return Origin.PEOPLE if self.kind in OF_PEOPLE and self.origin is Origin.MESHD else self.origin
