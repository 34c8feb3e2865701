"""The renewal of node tokens: `meshctl rotate-key --tokens`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, Name, Part


class TokenNodeRow(Part):
    """A node in a renewal of node tokens.

    Attributes:
        generation: of the token that it may use; 0 until the first renewal.
        state: `waiting`, `done`, `offline` (it gets its token when it returns), `failed`, `locked_out` (its token was
            stopped at once, and it is given back) or `gone`.
        reason: why it is not done; "" when it is.
    """

    machine: str
    slot: str
    generation: int = 0
    state: str
    reason: str = ""


class TokenRenewalView(Document):
    """The last renewal of node tokens, or none: then `id` is "".

    Attributes:
        active: some node is still waited for. One that is off, or fails, is not: it is asked again by itself.
        compromised: the old tokens were stopped at once.
        steps: what would be done, of a dry run.
    """

    at: AwareDatetime
    id: str = ""
    active: bool = False
    started_at: AwareDatetime | None = None
    by: str = ""
    compromised: bool = False
    nodes: list[TokenNodeRow] = []
    steps: list[str] = []


class TokenRenewalRequest(DryRunRequest):
    """Renew node tokens.

    Attributes:
        machines: whose; each may be a slot. Empty: all that have joined.
        compromised: stop the old tokens at once; the machines are locked out and given back after their jobs.
    """

    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    compromised: bool = False
