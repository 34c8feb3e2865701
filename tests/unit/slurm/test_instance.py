"""slurmd learns which instance it runs on, where its release can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.model.machine import Phase
from meshd.slurm.instance import instance_args
from tests.unit.worlds import machine


def of(version: str, instance_id: str, instance_type: str = "p5.48xlarge") -> list[str]:
    one = machine(Phase.CONFIGURING)
    assert one.facts
    offer = replace(one.offer, instance_type=instance_type)
    return instance_args(
        replace(one, facts=replace(one.facts, slurmd_version=version), instance_id=instance_id, offer=offer)
    )


@pytest.mark.parametrize("version", ["24.11.5", "23.11.1", "30.05"])
def test_the_instance(version: str) -> None:
    assert of(version, "i-0abc") == ["--instance-id", "i-0abc", "--instance-type", "p5.48xlarge"]


@pytest.mark.parametrize("version", ["22.05.8", "23.02.7", "", "20.11", "none"])
def test_an_older_slurmd_is_not_told(version: str) -> None:
    assert of(version, "i-0abc") == []


@pytest.mark.parametrize("word", ["", "a b", "-Z", "x\n", "$(id)", "é", "a" * 129, '"'])
def test_other_words_are_left_out(word: str) -> None:
    assert of("24.11.5", word) == ["--instance-type", "p5.48xlarge"]
    assert of("24.11.5", "x", word) == ["--instance-id", "x"]


def test_without_facts_there_is_no_instance() -> None:
    assert instance_args(replace(machine(Phase.CONFIGURING), facts=None)) == []
