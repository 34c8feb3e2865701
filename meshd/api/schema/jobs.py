"""Slurm's queue, as far as it is about this cluster's pools and head: what `meshctl top` shows of jobs."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, Part, Request

JOBS_MAX = 5000


class JobsQuery(Request):
    """The query string of GET /v1/jobs.

    Attributes:
        limit: the most rows: jobs that run come first, then those that wait, by id.
    """

    limit: int = Field(1000, gt=0, le=JOBS_MAX)


class JobRow(Part):
    """A job in a partition of a pool, or of the head.

    Attributes:
        account: "" where Slurm keeps no records.
        pool: whose partition it is in; "" for the head's own.
        state: Slurm's word, e.g. `RUNNING`, `CONFIGURING`, `PENDING`.
        nodes: the slots that it has; empty while it waits.
        node_count: how many it has or wants; 0 when that is not known.
        gpus: those that it asks for in all; 0 when none or not known.
        run_s: for how long it has run; None when it does not run.
        reason: why it waits: meshd's sentence where it waits for machines, else Slurm's word.
    """

    job: str
    user: str
    account: str = ""
    pool: str = ""
    partition: str
    state: str
    nodes: list[str] = []
    node_count: int = 0
    gpus: int = 0
    run_s: float | None = None
    reason: str = ""


class JobsView(Document):
    """Slurm's queue.

    Attributes:
        read_at: when Slurm said this; None while it cannot be read: then there are no rows.
        left_out: how many more jobs there are than rows.
    """

    at: AwareDatetime
    read_at: AwareDatetime | None = None
    jobs: list[JobRow] = []
    left_out: int = 0
