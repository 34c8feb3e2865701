"""Machines of several shapes in one pool, and a Slurm that cannot have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshd.config import PoolSettings, ProviderSettings, Settings
from meshd.daemon.machines import desired_state as wanted
from meshd.daemon.slurm.controller import SlurmFilesController
from meshd.model.machine import Phase
from meshd.model.observed import SlurmView
from meshd.plan.slurm_lines import check
from meshd.runtime.run import run
from meshd.slurm.client import SlurmClient
from meshd.slurm.read_back import node_records
from meshd.store.journal import Journal
from tests.live import live_settings
from tests.sources import Given, fresh
from tests.unit.daemon.joins import FACTS, GPU
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import GONE_DARK, NOW, OFFER, machine

SETTINGS = Settings(
    pools={
        "h100": PoolSettings(gpu="h100", gpus_per_node=1, gpus_per_node_max=8),
        "cpu": PoolSettings(cpus_min=2),
    },
    providers={"aws": ProviderSettings()},
)
EIGHT = tuple(replace(GPU, index=i, device=f"/dev/nvidia{i}") for i in range(8))


def publishing(
    directory: Path,
    version: str,
    *,
    systemd: tuple[bool | None, bool | None] = (None, None),
    pods: tuple[str, ...] = (),
) -> SlurmFilesController:
    journal = Journal(directory / "journal.db")
    for index, gpus in ((1, EIGHT), (2, EIGHT[:1])):
        offer = replace(OFFER, gpus=len(gpus), vcpus=1000, memory_mib=1 << 30)
        facts = replace(FACTS, gpus=gpus, systemd=systemd[index - 1])
        journal.put(machine(Phase.READY, index=index, offer=offer, facts=facts), "phase", "ready", NOW)
    return SlurmFilesController(
        live=live_settings(SETTINGS), journal=journal, client=SlurmClient(run, 1.0), clock=HandClock(),
        slurm=fresh(lambda: SlurmView(version, {}, ())) if version else Given(lambda: GONE_DARK), applied=lambda: None,
        pod_providers=pods,
    )  # fmt: skip


def test_each_line_has_its_machines_own_gpus_and_a_free_slot_the_fewest(tmp_path: Path) -> None:
    made = publishing(tmp_path, "24.11.5")
    rendered = made._make()
    assert rendered is not None
    lines = {line.split()[0]: line for line in rendered.nodes_conf.splitlines() if line.startswith("NodeName")}
    assert "Gres=gpu:h100:8" in lines["NodeName=h100-1"]
    assert "Gres=gpu:h100:1" in lines["NodeName=h100-2"]
    assert "Gres=gpu:h100:1" in lines["NodeName=h100-[3-8]"]
    assert "Gres" not in lines["NodeName=cpu-[1-8]"]
    assert "File=/dev/nvidia[0-7]" in rendered.gres_conf
    assert (made.shapes_fixed, made._content.unused_ranges()) == (False, "")


async def test_with_an_older_slurm_only_the_smallest_are_rented_and_it_is_told(tmp_path: Path) -> None:
    made = publishing(tmp_path, "22.05.8")
    assert made._make() is not None
    assert made.shapes_fixed
    row = await made.check()
    assert row.status == "warn"
    assert row.text.startswith("pools.h100.gpus_per_node_max is not used: Slurm 22.05.8 cannot")


def test_until_slurm_has_answered_nothing_is_rented_that_it_might_not_use(tmp_path: Path) -> None:
    made = publishing(tmp_path, "")
    assert made._make() is None
    assert (made.shapes_fixed, made._content.unused_ranges()) == (True, "")


@pytest.mark.parametrize(
    ("pods", "systemd", "kinds"),
    [
        ((), (None, None), ("vm", "vm")),
        (("aws",), (None, None), ("pod", "pod")),
        (("aws",), (True, False), ("vm", "pod")),
        ((), (True, False), ("vm", "pod")),
    ],
)
def test_a_node_has_the_feature_of_its_kind(
    tmp_path: Path, pods: tuple[str, ...], systemd: tuple[bool | None, bool | None], kinds: tuple[str, str]
) -> None:
    rendered = publishing(tmp_path, "24.11.5", systemd=systemd, pods=pods)._make()
    assert rendered is not None
    records = {record["nodename"]: record for record in node_records(rendered.nodes_conf)}
    features = {names: record.get("feature", "").split(",") for names, record in records.items()}
    for slot, kind in zip(("h100-1", "h100-2"), kinds, strict=True):
        assert [word for word in features[slot] if word in {"pod", "vm"}] == [kind]
    check(rendered.nodes_conf, rendered.gres_conf)
    assert int(records["h100-1"]["cpus"]) == FACTS.shape.cpus, "what it reports, whatever its cloud promised"
    free = [words for names, words in features.items() if names not in {"h100-1", "h100-2"}]
    assert free and not any({"pod", "vm"}.intersection(words) for words in free)


@pytest.mark.parametrize(("fixed", "most"), [(False, 8), (True, 1)])
def test_what_the_planner_is_told(fixed: bool, most: int) -> None:
    pools = wanted.pools(SETTINGS, ["aws"], NOW, shapes_fixed=fixed)
    assert pools["h100"].gpus_per_node_most == most
    assert pools["cpu"].cpu_only
