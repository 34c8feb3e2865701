"""What a node is given beside munge and Slurm: a document in sections, and what its agent reports of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class SectionState(StrEnum):
    """How far an agent is with a section."""

    WORKING = "working"
    APPLIED = "applied"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WantedSection:
    """What a machine is to have of one section.

    Attributes:
        digest: of the section's value.
        once: a machine that has applied the section, with any value, keeps what it has.
        within_s: how long it may take on a new machine, beyond `timing.configure_timeout_s`.
        fault: why the head cannot give it now; "" when it can.
    """

    digest: str
    once: bool = False
    within_s: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ReportedSection:
    """What an agent says of one section.

    Attributes:
        digest: of the value that it holds.
        detail: what it does, or why it failed, for people.
        final: it failed, and trying again cannot help.
        since: when the head first heard of this digest in this state.
    """

    digest: str
    state: SectionState
    since: datetime
    detail: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class NodeFault:
    """What a section's look at its own work found wrong, e.g. `share_lost`.

    Attributes:
        code: the kind of fault; `meshd.plan.node_settings.FAULTS` says what follows.
        since: since when it has been reported without a break.
    """

    section: str
    code: str
    detail: str
    since: datetime
