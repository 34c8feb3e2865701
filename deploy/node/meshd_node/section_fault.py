"""What a section of the node settings finds wrong with its own work."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """What is wrong: `code` is known to the head. `again`: to apply the section again may help."""

    code: str
    detail: str
    again: bool = False
