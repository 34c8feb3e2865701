"""The metrics: what is declared, what is served, and what the alert rules ask for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from meshd import config
from meshd.api.auth import Authorizer
from meshd.api.listen import SocketError
from meshd.api.monitoring import ExporterTarget, MetricsServer, MonitoringPages
from meshd.api.schema import ProblemView
from meshd.api.server import HeadApiServer
from meshd.codes import FaultCode
from meshd.config import MetricsSettings
from meshd.daemon.active_rotation import ActiveRotation
from meshd.daemon.head_api.metrics import RETRY_S, KeyTimes, MetricsService, metrics_snapshot
from meshd.daemon.head_api.targets import exporter_targets
from meshd.daemon.providers.breaker import COOL_DOWN_S, FAILURES_MAX, Breaker
from meshd.daemon.providers.report import paused
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import AgentReport, Fresh, GpuLoad, SlurmJob, SlurmView
from meshd.model.path import MeasuredPath, PathKind
from meshd.obs.metrics import Metrics, MetricsSnapshot
from meshd.plan.paths import FRESH_S
from meshd.plan.waiting import Wait, WaitingJob
from meshd.runtime.clock import SystemClock
from tests.codes import faulty
from tests.live import live_settings
from tests.unit.api.answers import Answers
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, machine, node, slurm, snapshot

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy/prometheus"


def stand(*machines: Machine, **changes: Any) -> MetricsSnapshot:
    pools = {name: Pool(name, "h100", 1, 8, ("aws",)) for name in ("h100", "empty")}
    targets = {"h100": Target("h100", 4, "", None, NOW, "root")}
    plain: dict[str, Any] = {
        "machines": machines,
        "desired": Desired("lab", pools, targets, Policy(), {}),
        "snapshot": snapshot(slurm=GONE_DARK),
        "problems": [ProblemView(severity="error", text="x", cure="y")],
        "breakers": {"aws": Breaker()},
        "reconfigures": 3,
        "steps_in_flight": 2,
        "ticked_at": ago(1.5),
        "now": NOW,
    }
    return metrics_snapshot(**{**plain, **changes})


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    found = metrics.registry.collect()
    return {(s.name, tuple(s.labels.values())): s.value for family in found for s in family.samples}


def test_what_stands() -> None:
    metrics = Metrics()
    fleet = [
        machine(Phase.READY),
        machine(Phase.READY, index=2),
        machine(Phase.BOOTING, index=3),
        machine(Phase.REQUESTED, index=4),
        machine(Phase.READY, index=5, removal=Removal.SCALE_DOWN),
    ]
    metrics.follow(lambda: stand(*fleet))
    found = samples(metrics)
    assert found["meshd_machines", ("h100", "aws", "ready")] == 3
    assert found["meshd_machines", ("h100", "aws", "booting")] == 1
    assert (found["meshd_gpus_ready", ("h100",)], found["meshd_gpus_ready", ("empty",)]) == (2, 0)
    assert found["meshd_gpus_wanted", ("h100",)] == 4
    assert ("meshd_gpus_wanted", ("empty",)) not in found
    assert found["meshd_usd_per_hour", ("h100", "aws")] == 8.0, "what is only asked for costs nothing"
    assert (found["meshd_problems", ("error",)], found["meshd_problems", ("warning",)]) == (1, 0)
    assert (found["meshd_source_up", ("tailnet",)], found["meshd_source_up", ("slurm",)]) == (1, 0)
    assert (found["meshd_source_age_seconds", ("slurm",)], found["meshd_source_age_seconds", ("tailnet",)]) == (60, 0)
    assert found["meshd_reconfigures_total", ()] == 3
    assert found["meshd_tick_age_seconds", ()] == 1.5
    assert found["meshd_provider_breaker_open", ("aws",)] == 0
    assert found["meshd_auth_key_dead", ()] == 0


def test_no_series_is_made_for_a_machine() -> None:
    metrics, many = Metrics(), [machine(Phase.READY, index=n) for n in range(1, 8)]
    metrics.follow(lambda: stand(*many))
    text = repr(samples(metrics).keys())
    assert not any(m.name in text or m.instance_id in text for m in many)


def test_paths_have_the_slot_and_what_the_pool_accepts() -> None:
    fleet = [
        machine(phase, index=n) for n, phase in enumerate((Phase.READY, Phase.TESTING, Phase.READY, Phase.BOOTING))
    ]
    kinds = (PathKind.DIRECT, PathKind.DERP, PathKind.DIRECT, PathKind.DIRECT)
    ages_s = (10.0, 10.0, FRESH_S + 1, 10.0)
    reports = {
        m.name: AgentReport(NOW, head_path=MeasuredPath(kind, "", 0.02, ago(age_s)))
        for m, kind, age_s in zip(fleet, kinds, ages_s, strict=True)
    }
    pools = {"h100": Pool("h100", "h100", 1, 8, ("aws",))}
    metrics, desired = Metrics(), Desired("lab", pools, {}, Policy(direct_pools=frozenset({"h100"})), {})
    metrics.follow(lambda: stand(*fleet, snapshot=snapshot(reports=reports), desired=desired))
    found = samples(metrics)
    direct = {key[1]: value for key, value in found.items() if key[0] == "meshd_node_path_direct"}
    assert direct == {("h100", "h100-0", "direct"): 1, ("h100", "h100-1", "direct"): 0}, "old ones tell nothing"
    assert found["meshd_node_path_rtt_seconds", ("h100", "h100-1")] == 0.02


def test_what_nodes_report_is_shown_while_it_is_new() -> None:
    fleet = [machine(Phase.READY, index=n, region="eu-1") for n in (1, 2, 3)] + [machine(Phase.BOOTING, index=4)]
    gpus = (GpuLoad(0, 50, 1024), GpuLoad(1, 100, 3072))
    reports = {
        fleet[0].name: AgentReport(ago(5), load1=1.5, gpus=gpus),
        fleet[1].name: AgentReport(ago(FRESH_S + 1), load1=9.0, gpus=gpus),
    }
    now = stand(*fleet, snapshot=snapshot(reports=reports))
    first, second = ("h100", "h100-1"), ("h100", "h100-2")
    assert now.node_info.keys() == {("h100", f"h100-{n}", "aws", "eu-1", "g.1") for n in (1, 2, 3)}
    assert now.node_load1 == {first: 1.5}
    assert now.node_gpu_use == {first: 0.75} and now.node_gpu_memory_b == {first: 4 * 2**30}
    assert now.node_heartbeat_age_s == {first: 5.0, second: FRESH_S + 1}


def test_the_oldest_machine_of_each_phase() -> None:
    now = stand(
        machine(Phase.BOOTING, age_s=5), machine(Phase.BOOTING, index=2, age_s=90), machine(Phase.READY, index=3)
    )
    assert now.oldest_in_phase_s == {("h100", "aws", "booting"): 90.0, ("h100", "aws", "ready"): 10.0}


def test_jobs_by_the_pool_of_their_nodes_or_their_partition() -> None:
    jobs = (
        SlurmJob("1", "ann", "gpu", "RUNNING", ("h100-1",)), SlurmJob("2", "ann", "gpu,head", "PENDING"),
        SlurmJob("3", "ann", "gpu", "STOPPED"), SlurmJob("4", "ann", "head", "RUNNING", ("head",)),
        SlurmJob("5", "ann", "head", "PENDING"),
    )  # fmt: skip
    seen = snapshot(slurm=Fresh(SlurmView("24.11.5", {}, jobs), NOW))
    now = stand(snapshot=seen, partitions={"h100": "gpu", "empty": "empty"})
    assert {key: n for key, n in now.jobs.items() if n} == {
        ("h100", "running"): 1, ("h100", "pending"): 1, ("h100", "other"): 1,
    }  # fmt: skip
    assert now.jobs["empty", "running"] == 0, "an alert can rely on it"
    assert stand().jobs == {}, "while Slurm cannot be read"


def test_jobs_that_wait_are_counted_by_what_they_wait_for() -> None:
    pools = {name: Pool(name, "h100", 1, 8, ("aws",), from_queue=name == "h100") for name in ("h100", "by-hand")}
    waiting = [WaitingJob(str(n), "ann", "h100", 1, 0, Wait.REFUSED, None, "sold out", batch=True) for n in (1, 2)]
    now = stand(desired=Desired("lab", pools, {}, Policy(), {}), waiting=waiting)
    assert now.jobs_waiting == {
        ("h100", "refused"): 2, ("h100", "order"): 0, ("h100", "boot"): 0, ("h100", "start"): 0,
    }  # fmt: skip


def test_keys_and_their_rotations() -> None:
    rotation = ActiveRotation("munge key", "meshctl rotate-key --munge", "stage", ago(100), "")
    now = stand(keys=KeyTimes(NOW, ago(60), rotation))
    assert (now.auth_key_ends_at, now.munge_key_made_at) == (NOW.timestamp(), NOW.timestamp() - 60)
    assert now.rotation_active_s == {"munge": 100.0, "auth": 0.0}
    assert stand().rotation_active_s == {"munge": 0.0, "auth": 0.0} and stand().munge_key_made_at is None
    auth = ActiveRotation("auth key", "meshctl rotate-key", "stage", ago(7), "")
    assert stand(keys=KeyTimes(rotation=auth)).rotation_active_s == {"munge": 0.0, "auth": 7.0}


def test_the_exporters_of_ready_nodes() -> None:
    bare = replace(OFFER, gpus=0, instance_type="cpu.1")
    fleet = [
        machine(Phase.READY, index=2, region="eu-1"), machine(Phase.READY, index=1, offer=bare),
        machine(Phase.TESTING, index=3), machine(Phase.DRAINING, index=4), machine(Phase.READY, index=5, tailnet_ip=""),
    ]  # fmt: skip
    found = exporter_targets(fleet, MetricsSettings(dcgm_exporter_port=0))
    assert [(one.exporter, one.address) for one in found] == [
        ("node", "100.64.0.2:9100"), ("node", "100.64.0.3:9100"), ("nvidia_gpu", "100.64.0.3:9835"),
    ]  # fmt: skip
    labels = {"slot": "h100-2", "pool": "h100", "provider": "aws", "region": "eu-1", "instance_type": "g.1"}
    assert found[1].labels == labels


def test_an_open_breaker_is_a_problem_and_a_metric() -> None:
    breaker = Breaker(FAILURES_MAX, "aws list: the cloud burns", COOL_DOWN_S, 100.0, 40.0)
    (problem,) = paused({"aws": breaker, "gce": Breaker()}, 104.0, NOW)
    assert problem.text == "aws is paused after 5 failed calls; next try in 6 s; the last: aws list: the cloud burns"
    assert (problem.severity, problem.since) == ("error", NOW - timedelta(seconds=64))
    metrics = Metrics()
    metrics.follow(lambda: stand(breakers={"aws": breaker}))
    assert samples(metrics)["meshd_provider_breaker_open", ("aws",)] == 1


# -- over the wire


@pytest.fixture
async def metrics() -> Metrics:
    made = Metrics()
    made.follow(MetricsSnapshot)
    made.tick_seconds.observe(0.002)
    return made


async def test_served_on_the_unix_socket(metrics: Metrics, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = HeadApiServer(
        Answers(),
        path=path,
        authorizer=Authorizer("nobody", own_uid=0),
        monitoring=MonitoringPages(metrics.registry, list),
        clock=SystemClock(),
    )
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        async with session.get("http://meshd/metrics") as answer:
            assert answer.content_type == "text/plain"
            assert 'meshd_tick_seconds_bucket{le="0.0025"} 1.0' in await answer.text()
        async with session.get("http://meshd/metrics", headers={"Origin": "http://evil"}) as answer:
            assert answer.status == 403
    await server.stop()


LABELS = {"slot": "h100-1"}


@pytest.fixture
async def port(metrics: Metrics) -> AsyncIterator[int]:
    found = [ExporterTarget("node", "100.64.0.2:9100", LABELS), ExporterTarget("dcgm", "100.64.0.2:9400", LABELS)]
    server = MetricsServer(MonitoringPages(metrics.registry, lambda: found))
    yield await server.start("127.0.0.1", 0)
    await server.stop()


async def test_served_over_tcp_and_nothing_else(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/metrics") as answer:
            assert (answer.status, "meshd_build_info" in await answer.text()) == (200, True)
        for path in ("/", "/v1/status", "/v1/scale"):
            async with session.get(path) as answer:
                assert answer.status == 404
        async with session.post("/metrics") as answer:
            assert answer.status == 405


async def test_targets_in_the_form_of_http_sd(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/v1/targets") as answer:
            assert answer.content_type == "application/json"
            assert await answer.json() == [
                {"targets": ["100.64.0.2:9100"], "labels": {"exporter": "node", **LABELS}},
                {"targets": ["100.64.0.2:9400"], "labels": {"exporter": "dcgm", **LABELS}},
            ]
        async with session.get("/v1/targets?exporter=dcgm") as answer:
            assert [group["targets"] for group in await answer.json()] == [["100.64.0.2:9400"]]
        async with session.get("/v1/targets?exporter=dgcm") as answer:
            assert answer.status == 400 and "dgcm" in (await answer.json())["error"]


async def test_an_address_that_is_taken_is_told(metrics: Metrics, port: int) -> None:
    with pytest.raises(SocketError, match=str(port)):
        await MetricsServer(MonitoringPages(metrics.registry, list)).start("127.0.0.1", port)


async def test_an_address_that_is_taken_is_tried_again(metrics: Metrics) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]

    class Clock(HandClock):
        async def sleep(self, delay_s: float) -> None:
            assert delay_s == RETRY_S
            (problem,) = telemetry.problems()
            assert f"port {port}" in problem.text
            assert problem.severity == "warning"
            taken.close()

    pages = MonitoringPages(metrics.registry, list)
    telemetry = MetricsService(pages, live_settings(metrics=MetricsSettings(listen=f"127.0.0.1:{port}")), Clock())
    task = asyncio.create_task(telemetry.run())
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    assert answer.status == 200
                    break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.01)
    assert list(telemetry.problems()) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("listen", "address"),
    [("", None), ("127.0.0.1:9679", ("127.0.0.1", 9679)), ("[::1]:1", ("::1", 1)), ("head.lan:80", ("head.lan", 80))],
)
def test_where_to_listen(listen: str, address: tuple[str, int] | None) -> None:
    assert MetricsSettings(listen=listen).address == address


@pytest.mark.parametrize("listen", ["9679", "127.0.0.1", "127.0.0.1:0", "h:70000", "http://h:1"])
def test_where_nobody_can_listen(listen: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(f"[metrics]\nlisten = {json.dumps(listen)}\n")
    with faulty(FaultCode.BAD_VALUE):
        config.load(tmp_path / "m.toml")


def test_unfit_nodes_are_not_ready_and_counted_by_reason() -> None:
    fit, drained, refused, mine = (machine(Phase.READY, index=index, age_s=100.0) for index in range(1, 5))
    view = slurm(
        node(fit, "IDLE"), node(drained, "MIXED", "DRAIN", reason="Kill task failed", reason_by="slurm"),
        node(refused, "IDLE", "DRAIN", "INVALID_REG", reason="gres/gpu count reported lower than configured (0 < 1)"),
        node(mine, "IDLE", "DRAIN", reason="drained by alice: mine"),
    )  # fmt: skip
    seen = snapshot(slurm=Fresh(view, NOW))
    now = stand(fit, drained, refused, mine, snapshot=seen)
    assert now.gpus_ready["h100"] == 1
    found = {key: number for key, number in now.nodes_unfit.items() if number}
    assert found == {("h100", "drained"): 1, ("h100", "invalid"): 1, ("h100", "drained_by_person"): 1}
    assert now.nodes_unfit["empty", "drained"] == 0, "an alert can rely on it"
