"""What came of each offer, and what a machine does, from its record alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Policy, Pool, Target
from meshd.model.ids import MachineName
from meshd.model.machine import Machine, Phase, Removal
from meshd.plan import explanation
from tests.unit.worlds import NOW, ago, machine, node, slurm

REFUSED = machine(Phase.GONE, instance_id="", failure="aws launch: nothing free", vendor_words="Insufficient...")
UNCLEAR = ago(3590)


@pytest.mark.parametrize(
    ("made", "outcome", "words"),
    [
        (machine(Phase.REQUESTED), "waiting", "because"),
        (machine(Phase.LAUNCHING), "waiting", "because"),
        (machine(Phase.LAUNCHING, create_unclear_at=UNCLEAR, vendor_words="cut"), "unclear", "cut"),
        (machine(Phase.BOOTING, create_unclear_at=UNCLEAR, vendor_words="cut"), "adopted",
         "cut; it was found by its name"),
        (machine(Phase.BOOTING, create_unclear_at=ago(4000), vendor_words="cut"), "rented", "i-1"),
        (machine(Phase.READY, launch_attempts=0), "adopted", "meshd did not know of it; it was found by its name"),
        (machine(Phase.READY), "rented", "i-1"),
        (machine(Phase.TERMINATING, failure="did not boot"), "failed", "did not boot"),
        (machine(Phase.GONE), "rented", "i-1"),
        (machine(Phase.GONE, removal=Removal.GANG_MOVED, reason="its gang moves"), "rented", "i-1; its gang moves"),
        (replace(REFUSED, refusal="no_capacity"), "no_capacity", "Insufficient..."),
        (replace(REFUSED, refusal="not_found"), "no_capacity", "Insufficient..."),
        (replace(REFUSED, refusal="quota_exceeded"), "quota", "Insufficient..."),
        (replace(REFUSED, refusal="auth_failed"), "refused", "Insufficient..."),
        (replace(REFUSED, vendor_words=""), "refused", "aws launch: nothing free"),
        (machine(Phase.GONE, instance_id="", reason="cools down"), "skipped", "cools down"),
        (machine(Phase.GONE, instance_id="", failure="no clear answer", create_unclear_at=UNCLEAR), "unclear",
         "no clear answer"),
    ],
)  # fmt: skip
def test_what_came_of_it(made: Machine, outcome: str, words: str) -> None:
    assert (explanation.outcome(made), explanation.words(made)) == (outcome, words)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (machine(Phase.REQUESTED), ["about to be asked for aws/r1a/g.1"]),
        (machine(Phase.LAUNCHING), ["has not answered yet"]),
        (
            machine(Phase.LAUNCHING, create_unclear_at=UNCLEAR, vendor_words="cut"),
            ["not clear (cut)", "until 11:03:10 UTC, when it is settled"],
        ),
        (machine(Phase.BOOTING), ["aws has it as i-1", "until 12:14:50 UTC"]),
        (machine(Phase.JOINING, problem="apt fails"), ["100.64.0.2", "What hinders it: apt fails"]),
        (machine(Phase.CONFIGURING), ["waits for munge to be proved"]),
        (machine(Phase.CONFIGURING, munge_ok=True), ["Slurm to take its line"]),
        (machine(Phase.TESTING), ["it shows IDLE"]),
        (
            machine(Phase.TESTING, slurmd_started=False, slurmd_start_ordered_at=None),
            ["slurmd starts when its path to the head is direct, until 12:04:50 UTC"],
        ),
        (machine(Phase.READY), ["works: Slurm shows IDLE, job 7 on it"]),
        (machine(Phase.READY, device_gone_since=NOW), ["device was deleted at 12:00:00 UTC", "logs in again"]),
        (machine(Phase.READY, device_gone_since=NOW, own_key=True), ["no auth key to come back with"]),
        (machine(Phase.READY, device_gone_since=NOW, own_key=True, spare_key="ab"), ["logs in again"]),
        (machine(Phase.DRAINING), ["takes no new jobs (because) and waits for job 7 to end"]),
        (machine(Phase.TERMINATING), ["about to be asked to end it (because)"]),
        (machine(Phase.TERMINATING, terminate_calls=3, failure="dead"), ["asked 3 times to end it (dead)"]),
        (machine(Phase.LOST, terminate_calls=9), ["asked 9 times", "2.00 USD per hour", "end i-1 in aws's console"]),
        (machine(Phase.GONE, gone_at=NOW, failure="dead"), ["gone since 2026-03-01 12:00:00 UTC: dead"]),
    ],
)
def test_what_it_is_doing(made: Machine, words: list[str]) -> None:
    context = explanation.Context(Policy(), slurm(node(made), jobs={made.slot: "7"}))
    for one in words:
        assert one in explanation.doing(made, context)


def test_every_phase_has_a_sentence_also_while_slurm_is_dark() -> None:
    cooldown = Cooldown(CooldownKey("provider:aws"), NOW, "slow down")
    for phase in Phase:
        assert explanation.doing(machine(phase), explanation.Context(Policy(), None, cooldown))
    assert "asked for aws/r1a/g.1 at 12:00:00 UTC: slow down" in explanation.doing(
        machine(Phase.REQUESTED), explanation.Context(Policy(), None, cooldown)
    )
    assert "Slurm cannot be read" in explanation.doing(machine(Phase.READY), explanation.Context(Policy(), None))


def test_the_ladder_goes_back_to_the_target_and_over_what_led_nowhere() -> None:
    def made(number: int, age_s: float, **changes: object) -> Machine:
        name = MachineName(f"lab-h100-1-aaaaa{number}")
        return replace(REFUSED, name=name, created_at=ago(age_s), **changes)  # type: ignore[arg-type]

    current = made(5, 10, phase=Phase.READY, instance_id="i-5", failure="")
    newest_first = [current, made(4, 20), made(3, 90), made(2, 95, instance_id="i-2"), made(1, 99)]
    shown = explanation.attempts(newest_first, current.name, ago(60))
    assert [m.name[-1] for m in shown] == ["3", "4", "5"], "2 was rented and ended before this target"
    assert [m.name[-1] for m in explanation.attempts(newest_first, current.name, ago(97))] == ["1", "2", "3", "4", "5"]
    assert len(explanation.attempts(newest_first, current.name, None)) == 5
    asked = explanation.attempts(newest_first, newest_first[3].name, ago(60))
    assert [m.name[-1] for m in asked][:2] == ["1", "2"], "the one that was asked about is shown whatever its age"


def test_constraints_of_pool_and_target() -> None:
    pool = Pool("h100", "h100", 1, 8, ("aws", "gce"), max_usd_per_gpu_hour=4, gpus_per_node_max=8, regions=("r1",))
    assert explanation.constraints(pool, None) == [
        "1 to 8 GPUs per machine, h100",
        "x86_64, at least 1 CPUs and 1024 MiB",
        "providers: aws, gce",
        "regions: r1",
        "spot: never",
        "pods: allow",
        "at most 4.00 USD per GPU-hour",
        "at most 8 machines",
    ]
    target = Target(
        "h100", 16, provider="gce", max_usd_per_gpu_hour=3, max_usd_per_hour=40, gpu="h100-sxm", gpus_per_node=8,
        spot="prefer", overshoot_max_gpus=0,
    )  # fmt: skip
    narrowed = explanation.constraints(pool, target)
    for line in (
        "8 GPUs per machine, h100-sxm",
        "provider: gce",
        "spot: prefer",
        "at most 3.00 USD per GPU-hour",
        "at most 40.00 USD per hour in all",
        "at most 0 GPUs more than wanted",
        "all machines of one provider and region (--spread lifts it)",
    ):
        assert line in narrowed
    assert "several providers" in explanation.constraints(pool, replace(target, spread=True))[-1]
    assert explanation.constraints(Pool("cpu", "", 0, 2, ("aws",)), Target("cpu", 2))[0] == "machines without GPUs"


def test_times_count_from_the_phase() -> None:
    m = machine(Phase.BOOTING, phase_since=NOW)
    until = NOW + timedelta(seconds=Policy().boot_timeout_s)
    assert f"{until:%H:%M:%S}" in explanation.doing(m, explanation.Context(Policy(), None))
