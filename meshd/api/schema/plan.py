"""What meshd would do: `meshctl plan`."""

from __future__ import annotations

from meshd.api.schema.base import Document, Part


class StepRow(Part):
    """One step of a plan."""

    action: str
    subject: str
    reason: str


class AlternativeRow(Part):
    """An offer that was considered: its price, and why it is taken or not.

    Attributes:
        rule: what decided: `taken`, `price`, `spot_preferred`, `fewest_machines`, `provider_order`, `name`, `place`,
            `limit_in_all`, `budget`, `slots`, `overshoot`, `limits_together`, `cooling_down`, `misfit`; `next` if it
            would be taken next.
        price_stale: too old to rely on for a budget.
    """

    offer: str
    provider: str
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 0
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0
    chosen: bool = False
    note: str = ""
    rule: str = ""
    price_stale: bool = False


class PlannedRow(Part):
    """A machine that would be rented for a slot.

    Attributes:
        offer: its key, e.g. "aws/us-east-1a/p5.48xlarge/spot".
        pod: it would be a pod: a container without systemd.
        limits: what it would lack, for people; "" when it would lack nothing.
    """

    slot: str
    pool: str
    offer: str
    provider: str
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 0
    spot: bool = False
    pod: bool = False
    limits: str = ""
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0


class PlanFinding(Part):
    """A warning.

    Attributes:
        code: which one it is (docs/codes.md): stable, the text is not.
        subject: the pool or machine that it is about.
    """

    code: str
    subject: str
    text: str
    cure: str = ""


class PlanView(Document):
    """What meshd would do now.

    Attributes:
        warnings: what the user should know first, as one line each.
        findings: the same, with codes.
        adds: how many machines would be rented: `machines` has a row for each.
        removes: names of the machines that would be given back.
        overshoot_gpus: how many GPUs there would be beyond the target, because machines are rented whole.
    """

    steps: list[StepRow] = []
    usd_per_hour_before: float = 0.0
    usd_per_hour_after: float = 0.0
    adds: int = 0
    removes: list[str] = []
    machines: list[PlannedRow] = []
    overshoot_gpus: int = 0
    alternatives: list[AlternativeRow] = []
    warnings: list[str] = []
    findings: list[PlanFinding] = []
