"""What was spent: `meshctl cost`."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, Part, Request

ROWS_MAX = 10_000


class CostQuery(Request):
    """The query string of GET /v1/cost.

    Attributes:
        by: what a row is about.
        since: from then on; None: since the month began (UTC).
        until: until then; None: until now.
        limit: the most rows; one more row sums up the others.
    """

    by: Literal["pool", "provider", "machine", "day", "user", "account", "job"] = "pool"
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    limit: int = Field(1000, gt=0, le=ROWS_MAX)


class CostRow(Part):
    """A part of what was spent.

    Attributes:
        key: the pool, provider, machine, day (UTC), user, account or job; "" for a `kind` that has none.
        kind: `one`; `idle` for what no job used; `others` for the rows beyond the limit.
        micro_usd: in millionths of a USD, exactly: the rows add up to the document's sum.
        gpu_hours, machine_hours: of jobs those that they had; a part of a machine counts as a part.
        machines: how many machines it is about.
        user, account, name: of a job.
    """

    key: str
    kind: Literal["one", "idle", "others"] = "one"
    micro_usd: int = 0
    usd: float = 0.0
    gpu_hours: float = 0.0
    machine_hours: float = 0.0
    machines: int = 0
    user: str = ""
    account: str = ""
    name: str = ""


class BudgetRow(Part):
    """A limit of the budget.

    Attributes:
        pool: "" for the one over all pools.
        period: `hour`, `day` or `month`. For an hour the numbers are USD per hour.
        promised_usd: what the machines that exist cost at least from now on.
        left_usd: what new machines may cost.
        until: when it begins again; None for an hour.
        reached: nothing more is rented now.
    """

    pool: str = ""
    period: Literal["hour", "day", "month"]
    limit_usd: float
    spent_usd: float
    promised_usd: float = 0.0
    left_usd: float
    until: AwareDatetime | None = None
    reached: bool = False


class CostView(Document):
    """What was spent between `since` and `until`.

    Attributes:
        known_since: when the ledger begins; None while it is empty.
        usd_per_hour: what all machines cost now.
        month_usd: what this month has cost until now.
        month_projected_usd: what it will have cost when the machines of now go on until its end.
        jobs_by: how it is known which jobs had which machines: `accounting` (Slurm's records) or `queue`.
        jobs_read_at: when this was read last; null before the first time. What jobs had since then is not known.
    """

    at: AwareDatetime
    by: str
    since: AwareDatetime
    until: AwareDatetime
    rows: list[CostRow] = []
    micro_usd: int = 0
    usd: float = 0.0
    usd_per_hour: float = 0.0
    month_usd: float = 0.0
    month_projected_usd: float = 0.0
    known_since: AwareDatetime | None = None
    jobs_by: Literal["accounting", "queue", ""] = ""
    jobs_read_at: AwareDatetime | None = None
    budget: list[BudgetRow] = []
