"""What `meshctl config check` says of pools that Slurm's queue drives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshd.api.endpoints import OFFERS
from meshd.api.schema import OfferRow, OffersView
from meshd.cli.promise_check import offer_of, promise_rows
from meshd.config import PoolSettings, ProviderSettings, Settings
from meshd.config.models import BudgetSettings
from meshd.provider_api import Offer, ProviderCapabilities
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW
from tests.unit.worlds import OFFER

BIG = replace(OFFER, vcpus=52, memory_mib=250_000, usd_per_hour=98.32, instance_type="g.8")


def rows(offers: list[Offer] | None, overall: BudgetSettings | None = None, **pool: Any) -> list[tuple[str, str, str]]:
    table = PoolSettings(gpu="h100", scale_from_queue=True, **pool)
    settings = Settings(
        pools={"h100": table, "by-hand": PoolSettings(gpu="h100", scale_from_queue=False)},
        providers={"aws": ProviderSettings()}, budget=overall or BudgetSettings(),
    )  # fmt: skip
    found = list(promise_rows(settings, {"aws": ProviderCapabilities()}, offers))
    assert {row.name for row in found} <= {"pools.h100"}
    return [(row.status, row.code, row.text) for row in found]


LIMIT = BudgetSettings(usd_per_day=100.0)


def test_the_promise_and_who_decides_it() -> None:
    small = replace(BIG, vcpus=40, memory_mib=200_000, zone="r1b", instance_type="g.7")
    ((status, _, text),) = rows([BIG, small], LIMIT)
    assert status == "ok"
    assert "40 CPUs, 190000 MiB, 1 GPU" in text and small.key in text and "2 offers" in text
    ((_, _, text),) = rows([BIG], LIMIT)
    assert "g.8 is all that suits" in text
    ((_, _, text),) = rows([BIG, small], LIMIT, cpus_min=8, memory_min_mib=8000)
    assert "8 CPUs, 8000 MiB" in text and "settings" in text


def test_an_odd_offer_is_a_warning() -> None:
    tiny = replace(BIG, vcpus=2, zone="r1b")
    assert [(status, code) for status, code, _ in rows([BIG, tiny, replace(BIG, zone="r1c")], LIMIT)] == [
        ("warn", "promise_small")
    ]


def test_nothing_suits_or_meshd_does_not_run() -> None:
    assert [code for _, code, _ in rows([replace(BIG, gpu="a100")], LIMIT)] == ["promise_unknown"]
    assert [status for status, _, _ in rows(None, LIMIT)] == ["ok"]


def test_where_nothing_suits_the_nearest_is_told() -> None:
    small, dear = replace(BIG, gpu_memory_gib=40), replace(BIG, gpu_memory_gib=80, usd_per_hour=99.0, zone="r1c")
    ((_, code, text),) = rows([small, dear, replace(small, arch="arm64")], LIMIT, gpu_memory_min_gib=94)
    assert code == "promise_unknown" and dear.key in text and "pools.h100.gpu_memory_min_gib" in text
    ((_, _, text),) = rows([replace(BIG, gpu="a100")], LIMIT)
    assert BIG.key not in text, "another GPU is not near"


def test_without_a_budget_the_most_that_the_queue_could_rent_is_shown() -> None:
    found = rows([OFFER, BIG], max_nodes=8)[-1]
    assert found[:2] == ("warn", "no_budget")
    assert "8 machines, at most 786.56 USD per hour" in found[2] and BIG.key in found[2]
    assert [code for _, code, _ in rows([OFFER, BIG], max_usd_per_gpu_hour=5.0)][-1] == "no_budget"
    assert "16.00 USD" in rows([OFFER, BIG], max_usd_per_gpu_hour=5.0)[-1][2]
    assert rows(None)[-1][1] == "no_budget"
    for limited in (rows([BIG], LIMIT), rows([BIG], max_usd_per_hour=10.0)):
        assert "no_budget" not in [code for _, code, _ in limited]
    assert "no_budget" not in [code for _, code, _ in rows([BIG], budget={"usd_per_day": 5})]


def test_the_running_meshd_is_asked_for_offers(head: SimHead, served: SimHead, meshctl: Meshctl, tmp_path: Any) -> None:
    row = OfferRow(
        offer="aws/r1a/g.1", provider="aws", region="r1", zone="r1a", instance_type="g.1", gpu="h100", gpus=1,
        gpu_memory_gib=80, vcpus=8, memory_mib=65536, arch="x86_64", usd_per_hour=2.0,
    )  # fmt: skip
    assert (offer_of(row).key, offer_of(row).memory_mib) == (row.offer, 65536)
    head.give(OFFERS, OffersView(at=NOW, offers=[row], total=1, matching=1))
    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\n[pools.h100]\ngpu = "h100"\nscale_from_queue = true\n')
    ran = meshctl("config", "check", "-o", "json", config=str(path))
    found = [(one["code"], one["status"]) for one in ran.json()["checks"] if one["name"] == "pools.h100"]
    assert found == [("promise_unknown", "warn"), ("no_budget", "warn")], "no provider is enabled, so nothing suits"
