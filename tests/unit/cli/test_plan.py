"""What a plan looks like, and that every option of `scale` and `plan` reaches the daemon."""

from __future__ import annotations

from typing import Any

import pytest

from meshd.api import endpoints
from meshd.api.schema import AlternativeRow, PlannedRow, PlanView, ScaleAnswer, ScaleRequest, StepRow
from meshd.cli.main import cli
from meshd.cli.render.plan import plan
from meshd.cli.render.terminal import plain
from tests.property.sim import START
from tests.unit.api.sim_head import OFFERS, SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import golden, until

SPOT = "aws/us-east-1a/p5.48xlarge/spot"


def planned(index: int, **changes: Any) -> PlannedRow:
    row: dict[str, Any] = {
        "slot": f"h100-{index}", "pool": "h100", "offer": SPOT, "provider": "aws", "gpu": "h100-sxm", "gpus": 8,
        "spot": True, "usd_per_hour": 17.2, "usd_per_gpu_hour": 2.15,
    }  # fmt: skip
    return PlannedRow(**{**row, **changes})


def other(offer: str, each: float, **changes: Any) -> AlternativeRow:
    row: dict[str, Any] = {
        "offer": offer, "provider": offer.split("/")[0], "gpu": "h100-sxm", "gpus": 8, "usd_per_hour": 8 * each,
        "usd_per_gpu_hour": each,
    }  # fmt: skip
    return AlternativeRow(**{**row, **changes})


VIEW = PlanView(
    steps=[
        StepRow(action="request_machine", subject="h100-2", reason="12 GPUs are wanted"),
        StepRow(action="request_machine", subject="h100-3", reason="12 GPUs are wanted"),
        StepRow(action="remove", subject="lab-h100-1-k7q2mz", reason="its gang moves"),
    ],
    machines=[planned(2), planned(3)],
    usd_per_hour_before=20.0,
    usd_per_hour_after=34.4,
    adds=2,
    removes=["lab-h100-1-k7q2mz"],
    overshoot_gpus=4,
    alternatives=[
        other(SPOT, 2.15, chosen=True),
        other("lambda/us-west-1/gpu_8x_h100_sxm5", 2.99),
        other("aws/us-east-1b/p5.48xlarge/spot", 2.15),
        other("gce/us-central1-a/a3-highgpu-8g", 11.06, note="costs 11.06 USD per GPU-hour, over the limit of 4.00"),
    ],
    warnings=["h100: prices of aws are of 2026-01-01"],
)


def test_golden_machines_price_and_what_was_not_taken() -> None:
    golden("plan-machines.txt", plain(*plan(VIEW)))


def test_nothing_to_do() -> None:
    assert plain(*plan(PlanView())).splitlines()[1:] == ["price: $0.00 -> $0.00 per hour (+$0.00)"]


def test_a_plan_without_machines_shows_its_steps() -> None:
    old = VIEW.model_copy(update={"machines": [], "alternatives": [], "overshoot_gpus": 0})
    assert "request_machine  h100-2" in plain(*plan(old))


def test_machines_without_gpus_have_no_price_per_gpu() -> None:
    cpu = planned(1, slot="cpu-1", gpu="", gpus=0, usd_per_hour=0.4, usd_per_gpu_hour=0.4)
    text = plain(*plan(PlanView(steps=VIEW.steps[:1], machines=[cpu], overshoot_gpus=1)))
    assert f"cpu-1  {SPOT}  -     -          0.40\n" in text
    assert "1 GPU " in text and "--max-overshoot" in text


def test_a_stale_price_is_marked_where_money_would_be_spent() -> None:
    assert "stale" not in plain(*plan(VIEW))
    stale = VIEW.model_copy(update={"alternatives": [other(SPOT, 2.15, chosen=True, price_stale=True)]})
    text = plain(*plan(stale))
    assert text.count("17.20 stale") == 2
    assert "`meshctl prices show`" in text


def test_alternatives_without_gpus_are_dearer_by_the_hour() -> None:
    cheap, dear = (other(f"aws/z/c7i.{n}", n / 10, gpu="", gpus=0, chosen=n == 3) for n in (3, 5))
    text = plain(*plan(PlanView(steps=VIEW.steps[:1], alternatives=[cheap, dear])))
    assert "$0.20" in text and "GPU-hour" not in text


OPTIONS = [
    "--pool", "a100", "--gpu", "NVIDIA A100-SXM4-40GB", "--gpus-per-node", "8", "--provider", "aws",
    "--region", "us-east-1", "--region", "eu-west-1", "--spot", "prefer", "--pods", "only", "--spread",
    "--max-price", "2.5", "--max-total", "40", "--max-overshoot", "0",
]  # fmt: skip
ASKED = ScaleRequest(
    gpus=4, pool="a100", gpu="a100-sxm", gpus_per_node=8, provider="aws", regions=("us-east-1", "eu-west-1"),
    spot="prefer", pods="only", spread=True, max_usd_per_gpu_hour=2.5, max_usd_per_hour=40, overshoot_max_gpus=0,
    dry_run=True,
)  # fmt: skip


def test_every_option_reaches_the_daemon(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(endpoints.PREVIEW, PlanView())
    head.give(endpoints.SCALE, ScaleAnswer(pool="a100", gpus_before=0, gpus=4, at=START, plan=PlanView()))
    assert meshctl("plan", "--gpus", "4", *OPTIONS).code == 0
    assert meshctl("scale", "--gpus", "4", *OPTIONS, "--yes").code == 0
    assert head.asked(endpoints.SCALE) == [ASKED, ASKED.model_copy(update={"dry_run": False})]
    assert head.asked(endpoints.PREVIEW) == [ASKED]
    assert meshctl("scale", "--gpus", "4", "--dry-run").code == 0
    assert head.asked(endpoints.SCALE)[-1] == ScaleRequest(gpus=4, dry_run=True)


def test_options_without_a_number_of_gpus(served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("plan", "--spread", "--max-overshoot", "0")
    assert ran.code == 2
    assert all(option in ran.err for option in ("--spread", "--max-overshoot", "--gpus"))


@pytest.mark.parametrize(
    "wrong", [["--spot", "always"], ["--gpu", "80GB"], ["--max-total", "0"], ["--max-overshoot", "-1"]]
)
def test_impossible_options_are_refused_before_the_request(
    head: SimHead, served: SimHead, meshctl: Meshctl, wrong: list[str]
) -> None:
    ran = meshctl("scale", "--gpus", "4", *wrong)
    assert ran.code == 2
    assert head.asked(endpoints.SCALE) == []
    if wrong[0] == "--gpu":
        assert "--gpu: '80GB'" in ran.err


def test_both_commands_have_the_same_options() -> None:
    def names(command: str) -> set[str]:
        found = cli.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None
        return {p.name for p in found.params if p.name}

    assert names("scale") & names("plan") >= {
        "gpus", "pool", "gpu", "gpus_per_node", "provider", "region", "spot", "spread", "max_price", "max_total",
        "max_overshoot",
    }  # fmt: skip


def test_each_attempt_is_a_line_while_waiting(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    first, second, third = (offer.key for offer in OFFERS)
    head.world.sold_out = {first, second}
    ran = meshctl("scale", "--gpus", "4", "--wait", "--yes", "--timeout", "60s")
    assert ran.code == 0, ran.err
    assert f"a100-1: no capacity at {first}, trying {second}" in ran.err
    assert f"a100-1: no capacity at {second}, trying {third}" in ran.err


def test_attempts_are_shown_where_the_wait_ends_at_once(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    first, second, _ = (offer.key for offer in OFFERS)
    head.world.sold_out = {first}
    scaled = meshctl("scale", "--gpus", "4", "--yes", "-o", "json").json()
    until(lambda: head.phases == ["ready"])
    head.give(endpoints.SCALE, ScaleAnswer.model_validate(scaled["answer"]))
    ran = meshctl("scale", "--gpus", "4", "--wait", "--yes")
    assert ran.code == 0, ran.err
    assert f"a100-1: no capacity at {first}, trying {second}" in ran.err
