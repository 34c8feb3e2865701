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
        active: it still waits for a node. It does not wait for nodes that are off or fail: meshd asks them again later.
        compromised: the old tokens were stopped at once.
        steps: of a dry run: what would be done.
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
        machines: the machines whose tokens to renew; each may be a slot. Empty: all that have joined.
        compromised: the old tokens stop working at once; the machines are locked out and given back after their jobs.
    """

    machines: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    compromised: bool = False
