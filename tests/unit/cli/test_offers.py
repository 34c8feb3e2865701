"""`meshctl offers` and `meshctl explain`: what people see, and what is sent to the daemon."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.api.endpoints import EXPLAIN, OFFERS
from meshd.api.schema import (
    AlternativeRow,
    AttemptRow,
    EventRow,
    ExplainView,
    NearRow,
    OfferRow,
    OffersQuery,
    OffersView,
    SourceView,
)
from meshd.cli.render.offers import offers
from meshd.cli.render.terminal import plain
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW, complete, golden


def row(offer: str, usd: float, **changes: Any) -> OfferRow:
    provider, where, kind, *spot = offer.split("/")
    plain_row: dict[str, Any] = {
        "offer": offer, "provider": provider, "region": where, "instance_type": kind, "gpu": "h100-sxm", "gpus": 8,
        "gpu_memory_gib": 80, "vcpus": 192, "memory_mib": 2_097_152, "arch": "x86_64", "spot": bool(spot),
        "usd_per_hour": usd, "usd_per_gpu_hour": usd / 8, "price_age_s": 130.0,
    }  # fmt: skip
    return OfferRow(**{**plain_row, **changes})


CATALOGUE = [
    row("aws/us-east-1a/p5.48xlarge/spot", 17.2, available=None),
    row("lambda/us-west-1/gpu_8x_h100_sxm5", 23.92, available=True),
    row("runpod/EU-RO-1/NVIDIA H100 80GB HBM3", 24.0, capacity_hint="High", available=True, price_stale=True,
        price_age_s=4e6),
    row("gce/us-central1-a/a3-highgpu-8g", 88.5, available=False),
    row("aws/us-east-1b/p5.48xlarge", 98.3, blocked_until=NOW + timedelta(minutes=4, seconds=10),
        blocked_reason="InsufficientInstanceCapacity: \x1b[31mnone"),
    row("aws/us-east-1a/c8g.large", 0.08, gpu="", gpus=0, gpu_memory_gib=0, vcpus=2, memory_mib=4096, arch="arm64",
        usd_per_gpu_hour=0.08, price_age_s=None, price_source="settings"),
]  # fmt: skip


UNREAD = SourceView(name="offers:paperspace", ok=False, reason="HTTP 503", since=NOW - timedelta(minutes=3))


def catalogue(*unread: SourceView) -> Callable[[OffersQuery], OffersView]:
    """Answers from CATALOGUE; `unread` are sources that could not be read."""

    def answer(query: OffersQuery) -> OffersView:
        fits = [o for o in CATALOGUE if query.gpu in (None, o.gpu) and query.provider in ((), (o.provider,))]
        shown = [o for o in fits if query.all or (o.available is not False and not o.blocked_until)]
        providers = sorted({o.provider for o in CATALOGUE})
        return OffersView(
            at=NOW, offers=shown[: query.limit], total=len(CATALOGUE), matching=len(fits),
            sources=[*(SourceView(name=f"offers:{name}", ok=True, at=NOW) for name in providers), *unread],
            left_out={"no free capacity": len(fits) - len(shown)} if len(fits) > len(shown) else {},
            near=[] if fits else [NearRow(field="gpu", count=len(CATALOGUE), offer=CATALOGUE[0])],
            gpus=sorted({o.gpu for o in CATALOGUE if o.gpu}), regions=sorted({o.region for o in CATALOGUE}),
        )  # fmt: skip

    return answer


@pytest.fixture
def market(head: SimHead) -> SimHead:
    head.frozen = True
    head.give(OFFERS, catalogue(UNREAD))
    return head


def test_golden_offers(market: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    golden("offers.txt", meshctl("offers").out)
    golden("offers-all.txt", meshctl("offers", "--all").out)


def test_every_option_reaches_the_daemon(market: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("offers").code == 0
    argv = ["--gpu", "NVIDIA H100 80GB HBM3", "--gpus-per-node", "8", "--provider", "aws", "--provider", "gce"]
    argv += ["--region", "us-east-1", "--on-demand", "--max-price", "2.5", "--min-vram", "80", "--arch", "arm64"]
    argv += ["--all", "--sort", "provider", "--limit", "7", "--refresh"]
    assert meshctl("offers", *argv).code == 0
    assert meshctl("offers", "--spot", "--provider", "aws").code == 0
    assert meshctl("offers", "--zones").code == meshctl("offers", "-o", "json").code == 0
    assert market.asked(OFFERS) == [
        OffersQuery(fold=True),
        OffersQuery(
            gpu="h100-sxm", gpus_per_node=8, provider=("aws", "gce"), region=("us-east-1",), spot=False,
            max_usd_per_gpu_hour=2.5, gpu_memory_min_gib=80, arch="arm64", all=True, sort="provider", limit=7,
            fold=True, refresh=True,
        ),
        OffersQuery(spot=True, provider=("aws",), fold=True),
        OffersQuery(),
        OffersQuery(),
    ]  # fmt: skip
    for wrong in (["--gpu", "80GB"], ["--limit", "0"], ["--max-price", "0"], ["--arch", "mips"], ["--sort", "age"]):
        assert meshctl("offers", *wrong).code == 2, wrong


def test_offers_as_json(market: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    view = OffersView.model_validate_json(meshctl("offers", "-o", "json", "--limit", "2").out)
    assert view.offers == CATALOGUE[:2]
    assert (view.total, view.matching, view.sources[-1].ok) == (6, 6, False)


REFRESHED = OffersQuery(refresh=True)


def shown(query: OffersQuery = REFRESHED, **parts: Any) -> str:
    view: dict[str, Any] = {"at": NOW, "offers": CATALOGUE[:1], "total": 9, "matching": 1, **parts}
    return plain(*offers(OffersView(**view), query))


def footer(**parts: Any) -> str:
    """The line below the table."""
    return shown(OffersQuery(), **parts).partition("\n\n")[2].splitlines()[0]


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def test_the_footer_counts_what_is_not_shown() -> None:
    assert numbers(footer()) == [1]
    assert numbers(footer(matching=9)) == [1, 9, 8]
    line = footer(matching=9, left_out={"cooling down": 1, "no free capacity": 2})
    assert numbers(line) == [1, 9, 5, 3, 1, 2]
    assert "--limit" in line and "--all" in line


def test_a_provider_that_did_not_answer_to_a_refresh_is_named() -> None:
    late = SourceView(name="offers:gce", ok=True, at=NOW - timedelta(minutes=4))
    assert re.search(r"^gce .*4m00s", shown(sources=[late]), re.M)
    assert "gce" not in shown(OffersQuery(), sources=[late])


def test_a_row_for_several_zones_counts_as_several_offers() -> None:
    three = row("aws/us-east-1a/p5.48xlarge", 98.3, region="us-east-1", zone="us-east-1a", zones=["a", "b", "c"])
    assert "us-east-1 (3 zones)" in shown(offers=[three])
    assert numbers(footer(offers=[three, CATALOGUE[1]], matching=9)) == [4, 9, 5]


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (("--provider", "wsa"), "aws"),
        (("--provider", "aws", "--provider", "lamda"), "lambda"),
        (("--region", "us-esat-1"), "us-east-1"),
        (("--region", "mars"), "us-east-1"),
        (("--gpu", "h10"), "h100"),
        (("--gpu", "tpu"), "h100-sxm"),
    ],
)
def test_an_unknown_name_is_wrong_usage(
    market: SimHead, served: SimHead, meshctl: Meshctl, argv: tuple[str, ...], near: str
) -> None:
    market.give(OFFERS, catalogue())
    for output in ("table", "json"):
        ran = meshctl("offers", *argv, "-o", output)
        assert ran.code == 2 and near in ran.err, ran
    assert ran.json()["kind"] == "unknown"


def test_a_sold_out_gpu_is_not_an_error(market: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("offers", "--gpu", "gh200")
    assert ran.code == 0 and "gh200" in ran.out
    market.give(OFFERS, catalogue(SourceView(name="offers:gce", ok=False, reason="busy", since=NOW)))
    assert meshctl("offers", "--region", "mars").code == 0, "gce may be there: it was not read"


def test_without_a_match_it_shows_what_other_options_would_find() -> None:
    near = [
        NearRow(field="max_usd_per_gpu_hour", count=14, offer=CATALOGUE[0]),
        NearRow(field="spot", count=1, offer=CATALOGUE[5]),
    ]
    first, price, spot = shown(offers=[], matching=0, near=near).splitlines()
    assert numbers(first) == [9]
    assert all(part in price for part in ("--max-price", "14 offers", CATALOGUE[0].offer, "$2.15 per GPU-hour"))
    assert all(part in spot for part in ("--spot or --on-demand", "1 offer,", CATALOGUE[5].offer, "$0.08"))
    assert "docs/providers.md" in shown(OffersQuery(gpus_per_node=0), offers=[], matching=0)
    only = shown(offers=[], matching=2, left_out={"cooling down": 2})
    assert numbers(only) == [2, 2] and "--all" in only
    assert numbers(shown(offers=[], matching=0, total=0)) == []


EXPLANATION = ExplainView(
    subject="h100-3", at=NOW, pool="h100", slot="h100-3", machine="lab-h100-3-k7q2mz", phase="booting", target_gpus=16,
    why="it boots: gce has it as 4711; it is waited for on the tailnet until 03:19:05 UTC",
    constraints=["8 GPUs per machine, h100", "providers: aws, gce", "at most 4.00 USD per GPU-hour"],
    rungs=[
        AttemptRow(at=NOW, machine="lab-h100-3-aaaaaa", offer="aws/us-east-1a/p5.48xlarge", provider="aws",
                usd_per_hour=20, outcome="no_capacity", words="InsufficientInstanceCapacity: We currently do not ..."),
        AttemptRow(at=NOW, machine="lab-h100-3-bbbbbb", offer="aws/us-east-1b/p5.48xlarge", provider="aws",
                usd_per_hour=20, outcome="quota", words="VcpuLimitExceeded: \x1b[31mYou have ..."),
        AttemptRow(at=NOW, machine="lab-h100-3-k7q2mz", offer="gce/us-central1-a/a3-highgpu-8g", provider="gce",
                usd_per_hour=24, outcome="adopted", words="connection cut; it was found by its name"),
    ],
    next_rungs=[
        AlternativeRow(offer="gce/us-central1-b/a3-highgpu-8g", provider="gce", gpu="h100-sxm", gpus=8,
                       usd_per_hour=24.8, usd_per_gpu_hour=3.1),
        AlternativeRow(offer="gce/us-east4-a/a3-highgpu-8g", provider="gce", gpu="h100-sxm", gpus=8, usd_per_hour=40,
                       usd_per_gpu_hour=5, note="costs 5.00 USD per GPU-hour, over the limit of 4.00"),
    ],
    events=[EventRow(id=9, at=NOW, kind="phase", text="booting: gce accepted it", machine="lab-h100-3-k7q2mz")],
)  # fmt: skip


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_golden_explain(head: SimHead, served: SimHead, meshctl: Meshctl, utc: None) -> None:
    head.give(EXPLAIN, EXPLANATION)
    golden("explain.txt", meshctl("explain", "h100-3").out)
    assert ExplainView.model_validate_json(meshctl("explain", "h100-3", "-o", "json").out) == EXPLANATION


def test_explain_without_a_machine_or_a_search(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(EXPLAIN, EXPLANATION.model_copy(update={"phase": "ready"}))
    assert EXPLANATION.next_rungs[0].offer not in meshctl("explain", "h100-3").out, "meshd looks for no other offer"
    empty = ExplainView(subject="h100-4", at=NOW, pool="h100", slot="h100-4", why="none is wanted")
    head.give(EXPLAIN, empty)
    assert meshctl("explain", "h100-4").out.endswith("\nnone is wanted\n")
    head.give(EXPLAIN, ExplainView(subject="h100", at=NOW, pool="h100", why="it has no target"))
    assert meshctl("explain", "h100").out.startswith("pool h100\n")


def test_an_unknown_name(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.grow(1)
    ran = meshctl("explain", "a10-1", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "unknown")
    assert "a100-1" in ran.json()["cure"]
    assert meshctl("explain").code == 2


def test_names_are_completed(market: SimHead, served: SimHead, socket_path: Path) -> None:
    market.frozen = False
    (machine,) = market.grow(1)
    assert complete(socket_path, ["offers", "--gpu"], "h") == ["h100-sxm"]
    assert complete(socket_path, ["offers", "--region"], "us-e") == ["us-east-1a", "us-east-1b"]
    assert complete(socket_path, ["explain"], "a100") == ["a100", "a100-1"]
    assert complete(socket_path, ["explain"], "lab-") == [machine.name]
    assert complete(socket_path, [], "off") == ["offers"]
