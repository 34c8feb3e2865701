from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meshd.api.plans import plan_view
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.plan import NotePublished, Plan, Remove, RequestMachine, Warn
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
            NotePublished("lab-a100-2-aaaaaa", "its line is in force"),
        ),
        (Warn("a100", "too few slots", "raise max_nodes"),),
    )
    view = plan_view(plan, [machine(1, Phase.READY), machine(2, Phase.BOOTING), machine(9, Phase.GONE)])
    assert [(s.action, s.subject) for s in view.steps] == [
        ("request_machine", "a100-3"),
        ("remove", "lab-a100-1-aaaaaa"),
    ]
    assert "8x a100 at $32.77 per hour from aws/eu-west-1/p4d.24xlarge" in view.steps[0].reason
    assert (view.adds, view.removes) == (1, ["lab-a100-1-aaaaaa"])
    assert view.usd_per_hour_before == pytest.approx(65.54)
    assert view.usd_per_hour_after == pytest.approx(65.54)
    assert view.warnings == ["a100: too few slots (raise max_nodes)"]
