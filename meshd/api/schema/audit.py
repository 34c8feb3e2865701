"""What lies on the accounts: `meshctl audit`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Part


class AuditRow(Part):
    """One thing, or a listing that failed.

    Attributes:
        provider: or `tailnet`.
        kind: `machine`, `volume`, `address`, `image`, `snapshot`, `script`, `device` or `auth_key`.
        id: the vendor's; "" for a listing that failed.
        owner: `ours`, `other` (another cluster of meshd) or `foreign`; "" for a listing that failed.
        verdict: `ours`, `leaked`, `foreign` or `unknown`.
        usd_per_hour: null where it is not known.
        why: for people.
        cure: the command that ends what leaked, or what to do where a listing failed.
    """

    provider: str
    kind: str
    id: str = ""
    name: str = ""
    region: str = ""
    owner: str = ""
    verdict: str
    created_at: AwareDatetime | None = None
    age_s: float | None = None
    usd_per_hour: float | None = None
    why: str = ""
    cure: str = ""


class AuditView(Document):
    """Everything on every account of the settings, whoever made it: what leaked first.

    Attributes:
        leaked: how many things leaked.
        unknown: how many listings failed, and things of which nothing is known.
        left_out: how many foreign things are not shown, since there are too many.
        notes: what cannot be listed at all.
    """

    at: AwareDatetime
    rows: list[AuditRow] = []
    leaked: int = 0
    unknown: int = 0
    left_out: int = 0
    notes: list[str] = []
