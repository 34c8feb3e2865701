"""A freeze: `meshctl freeze` and `thaw`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from meshd.api.schema.base import Document, Part, Request
from meshd.model.freeze import REASON_MAX
from meshd.plaintext import plain


class FreezeView(Part):
    """A freeze that holds.

    Attributes:
        since: when it began.
        by: who froze meshd.
        reason: why; "" when nobody said.
    """

    since: AwareDatetime
    by: str
    reason: str = ""


class FreezeRequest(Request):
    """Rent nothing and end nothing until a thaw."""

    reason: Annotated[str, Field(max_length=REASON_MAX), AfterValidator(plain)] = ""


class ThawRequest(Request):
    """End the freeze.

    Attributes:
        provider: only go on without a listing of this cloud, which meshd waits for since an older journal was
            restored; a freeze holds on. "": end the freeze.
    """

    provider: Annotated[str, Field(max_length=100), AfterValidator(plain)] = ""


class FreezeAnswer(Document):
    """The answer to both.

    Attributes:
        frozen: whether meshd is frozen now.
        changed: false where it was so before.
        freeze: the freeze that holds, or that has ended; null when there was none.
    """

    frozen: bool
    changed: bool
    freeze: FreezeView | None = None
