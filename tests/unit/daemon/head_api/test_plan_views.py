from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from meshd.codes import WarningCode
from meshd.daemon.head_api.plan_views import document
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.plan import CancelRemoval, Plan, RecordPublished, Remove, RequestMachine, Step, Warn
from meshd.plan.plan_summary import overshoot_gpus
from meshd.provider_api import Offer, ProviderName

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OFFER = Offer(ProviderName("aws"), "eu-west-1", "", "p4d.24xlarge", "a100", 8, 40, 96, 1_000_000, 32.77)


def machine(index: int, phase: Phase) -> Machine:
    return Machine(
        MachineName(f"lab-a100-{index}-aaaaaa"),
        PoolName("a100"),
        SlotName(f"a100-{index}"),
        "aws",
        OFFER,
        phase,
        NOW,
        NOW,
    )


def test_a_plan_as_document() -> None:
    plan = Plan(
        (
            RequestMachine("a100-3", "24 GPUs are wanted", "a100", OFFER),
            Remove("lab-a100-1-aaaaaa", "not wanted"),
            RecordPublished("lab-a100-2-aaaaaa", "its line is in force"),
        ),
        (Warn("a100", "too few slots", WarningCode.SLOTS, "raise max_nodes"),),
    )
    machines = [machine(1, Phase.READY), machine(2, Phase.BOOTING), machine(9, Phase.GONE)]
    desired = Desired("lab", {"a100": Pool("a100", "a100", 8, 8, ("aws",))}, {})
    view = document(plan, machines, desired)
    assert [(s.action, s.subject) for s in view.steps] == [
        ("request_machine", "a100-3"),
        ("remove", "lab-a100-1-aaaaaa"),
    ]
    assert "8x a100 at $32.77 per hour from aws/eu-west-1/p4d.24xlarge" in view.steps[0].reason
    assert [(m.slot, m.offer, m.usd_per_gpu_hour) for m in view.machines] == [
        ("a100-3", "aws/eu-west-1/p4d.24xlarge", 4.0963)
    ]
    assert [(m.pod, m.limits) for m in view.machines] == [(False, "")]
    pods = replace(desired, policy=Policy(pod_limits={"aws": "no systemd"}))
    assert [(m.pod, m.limits) for m in document(plan, machines, pods).machines] == [(True, "no systemd")]
    assert (view.adds, view.removes) == (1, ["lab-a100-1-aaaaaa"])
    assert view.usd_per_hour_before == pytest.approx(65.54)
    assert view.usd_per_hour_after == pytest.approx(65.54)
    assert view.warnings == ["a100: too few slots (raise max_nodes)"]


def test_overshoot() -> None:
    def over(gpus: int, *steps: Step, machines: list[Machine] | None = None) -> int:
        pool = Pool("a100", "a100", 8, 8, ("aws",))
        desired = Desired("lab", {"a100": pool}, {"a100": Target("a100", gpus)})
        return overshoot_gpus(Plan(steps), machines or [], desired)

    new = [RequestMachine(f"a100-{i}", "wanted", "a100", OFFER) for i in (3, 4)]
    ready, draining = machine(1, Phase.READY), replace(machine(2, Phase.DRAINING), removal=Removal.SCALE_DOWN)
    assert over(16, *new) == 0
    assert over(12, *new) == 4
    assert over(12, new[0], machines=[ready]) == 4
    assert over(12, *new, Remove(ready.name, "its gang moves"), machines=[ready]) == 4
    assert over(20, new[0], CancelRemoval(draining.name, "wanted"), machines=[ready, draining]) == 4
    assert over(4, machines=[ready]) == 0, "what is there already is no overshoot of this plan"
    bare = replace(OFFER, gpu="", gpus=0)
    assert over(1, *(replace(step, offer=bare) for step in new)) == 1, "a machine without GPUs counts as one"


def test_the_public_words_of_steps_do_not_follow_the_names_of_classes() -> None:
    assert {kind.__new__(kind).action for kind in Step.__subclasses__()} == {
        "accept", "adopt", "adopt_orphan", "ask_agent", "ask_cloud", "disable_key_expiry", "drain", "keep_after_all",
        "launch", "leave", "move", "note_device", "note_fitness", "note_peer", "note_published", "remove",
        "reload_slurmd", "remove_device", "replace", "request_machine", "requeue_jobs", "requeue_lost_jobs",
        "restart_slurmd", "signal_jobs", "start_slurmd", "terminate", "terminate_orphan", "undrain", "warn",
    }  # fmt: skip
