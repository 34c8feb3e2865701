"""What a node may send as the result of a command: one model for each verb. The rest of a result is dropped.

A stranger may control the machine that sends a result. So each field has a length and a range, and fields that nothing
reads are dropped on arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from meshd.plaintext import plain_lines

LOGS_MAX: Final = 12
LOG_MAX_CHARS: Final = 64 * 1024
LOGS_MAX_B: Final = 256 * 1024
"""How much larger the body of a poll with logs may be."""

UNIX_MAX: Final = 4_102_444_800.0
"""The year 2100: no time of a machine is later."""

Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]
Unix = Annotated[float, Field(ge=0, le=UNIX_MAX)]


class _Result(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


class RosterResult(_Result):
    """`roster`."""

    changed: bool = False


class MungeKeyResult(_Result):
    """`munge_key`: which key is in place or staged, and when munged was away by the head's clock."""

    fingerprint: Digest = ""
    stopped_unix: Unix | None = None
    started_unix: Unix | None = None

    @model_validator(mode="after")
    def _in_order(self) -> MungeKeyResult:
        if (self.stopped_unix is None) != (self.started_unix is None):
            raise ValueError("stopped_unix and started_unix come together")
        if self.stopped_unix is not None and self.started_unix is not None and self.started_unix < self.stopped_unix:
            raise ValueError("munged cannot have started before it stopped")
        return self


class KeyResult(_Result):
    """`auth_key`, `spare_key`: what is in the file now."""

    sha256: Sha256 = ""


class NodeTokenResult(_Result):
    """`node_token`: the generation that the agent keeps; only the use of the token proves it."""

    generation: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0


class ReauthResult(_Result):
    """`reauth`: the new node key, and how long the link was away."""

    node_key: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z:]*$")] = ""
    gap_s: Annotated[float, Field(ge=0, le=600)] | None = None


class GreetResult(_Result):
    """`greet`."""

    answered: bool = False


class SlurmdResult(_Result):
    """`start_slurmd`, `restart_slurmd`, `reload_slurmd`, `leave`."""

    alive: bool = False


class SectionResult(_Result):
    """`section`: nothing. What became of it is in each report."""


class LogsResult(_Result):
    """`collect_logs`: the last lines of each log, by its name; longer ones lose their beginning."""

    logs: Annotated[
        dict[Annotated[str, Field(max_length=80, pattern=r"^[0-9A-Za-z@._-]+$")], str], Field(max_length=LOGS_MAX)
    ] = {}

    @field_validator("logs")
    @classmethod
    def _bounded(cls, logs: dict[str, str]) -> dict[str, str]:
        return {name: plain_lines(text, LOG_MAX_CHARS) for name, text in logs.items()}


RESULTS: Final[Mapping[str, type[_Result]]] = {
    "roster": RosterResult,
    "munge_key": MungeKeyResult,
    "auth_key": KeyResult,
    "spare_key": KeyResult,
    "node_token": NodeTokenResult,
    "reauth": ReauthResult,
    "greet": GreetResult,
    "start_slurmd": SlurmdResult,
    "restart_slurmd": SlurmdResult,
    "reload_slurmd": SlurmdResult,
    "section": SectionResult,
    "collect_logs": LogsResult,
    "leave": SlurmdResult,
}
"""The model of each verb's result."""


def read(verb: str, data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields of a result that its verb's model has.

    Args:
        verb: of the command.
        data: as the agent sent it.

    Returns:
        The fields that were sent, and the names of those that cannot be used, or "".
    """
    try:
        return RESULTS.get(verb, _Result).model_validate(data).model_dump(exclude_unset=True, exclude_none=True), ""
    except ValidationError as error:
        where = sorted({".".join(str(part) for part in one["loc"])[:80] for one in error.errors(include_input=False)})
        return {}, ", ".join(where)[:200] or "its fields"
    except (OverflowError, RecursionError):  # a number with hundreds of digits; brackets without end
        return {}, "its fields"
