"""A real Prometheus beside meshd: its targets, each query of rules and dashboards, alerts that fire and resolve."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from meshd.contract.faults import CloudFault, FaultKind, When
from tests.e2e.lab import Lab, Unanswered
from tests.e2e.prometheus import Prometheus, prometheus, run_node_exporter
from tests.unit.obs.shipped import DOCS, dashboards, panels, rules

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

VARIABLES = {
    "pool": "h100", "slot": ".*", "provider": ".*", "__rate_interval": "1m", "__range": "1h",
}  # fmt: skip
JOB_COST = "meshd_job_cost_usd"
"""What jobs cost is counted two minutes late: too long for each run."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(booted: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    async with prometheus(booted, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


def expressions() -> Iterator[str]:
    """Each query of panels, variables and recorded sums. Those of alerts show nothing while all is well."""
    for _, board in dashboards():
        asked = [target["expr"] for panel in panels(board) for target in panel["targets"]]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                asked.append(re.sub(r"^label_values\((.*), \w+\)$", r"\1", variable["query"]["query"]))
        for query in asked:
            yield re.sub(r"\$(\w+)", lambda found: VARIABLES[found[1]], query)
    for rule in rules():
        if "record" in rule:
            yield from (rule["expr"], rule["record"])


async def with_values(lab: Lab, server: Prometheus, asked: list[str]) -> None:
    """Wait until each of these has a value."""

    async def look() -> bool:
        empty = [query for query in asked if not await server.query(query)]
        if empty:
            raise Unanswered("no value of:\n" + "\n".join(empty))
        return True

    await lab.until(look, "each query has values")


async def test_targets_values_and_alerts(lab: Lab, watched: Prometheus) -> None:
    # Its cloud will not end the machine, when it is to.
    lab.fault(CloudFault(FaultKind.NEVER_ENDS, "launch"))
    await lab.have(1)
    ((slot, row),) = (await lab.by_slot()).items()
    machine = row["machine"]
    job = await lab.sbatch("true")

    # The node's exporter is found, and reached over the tailnet.
    await run_node_exporter(lab, machine, row["address"])

    async def scraped() -> bool:
        return [one["health"] for one in await watched.targets("nodes")] == ["up"]

    await lab.until(scraped, "Prometheus reads the node's exporter")
    (target,) = await watched.targets("nodes")
    labels = target["labels"]
    # `meshctl nodes` shows the zone.
    assert labels["region"] and row["region"].startswith(labels["region"])
    assert (labels["slot"], labels["pool"], labels["provider"], labels["instance_type"], labels["exporter"]) == (
        slot, "h100", "aws", row["instance_type"], "node",
    )  # fmt: skip
    assert {one["metric"]["slot"] for one in await watched.query("node_uname_info")} == {slot}

    # Every query has values; every alert can be asked for.
    await lab.completed(job)
    await with_values(lab, watched, [query for query in expressions() if JOB_COST not in query])
    for rule in rules():
        await watched.query(rule["expr"])
    served = {re.sub(r"_(bucket|count|sum)$", "", name) for name in await watched.names() if name.startswith("meshd_")}
    described = set(re.findall(r"^\| `(meshd_\w+)`", (DOCS / "metrics.md").read_text(), re.M))
    assert served - described == set()

    # A node that Slurm drained.
    await lab.timing(unfit_grace_s=1.0)
    await lab.head.run("scontrol", "update", f"nodename={slot}", "state=drain", "reason=Kill task failed")
    await lab.until(lambda: watched.fires("MeshdNodesUnfit"), "the drained node is told")
    await lab.head.run("scontrol", "update", f"nodename={slot}", "state=resume")
    await over(lab, watched, "MeshdNodesUnfit")

    # A cloud that cannot be listed.
    lab.fault(CloudFault(FaultKind.ERROR_BEFORE, "list", When.ALWAYS))
    await lab.until(lambda: watched.fires("MeshdProviderUnreadable"), "the cloud is told")
    lab.cluster.clouds.clouds["aws"].faults.clear()
    await over(lab, watched, "MeshdProviderUnreadable")

    # A machine that its cloud does not end. Its target goes before.
    await lab.timing(lost_after_s=3.0)
    await lab.want(0)

    async def no_target() -> bool:
        return await watched.targets("nodes") == []

    await lab.until(no_target, "the node's target is gone")
    await lab.until(lambda: watched.fires("MeshdMachineLost"), "the machine that costs is told")
    lab.cluster.clouds.clouds["aws"].ledger.release()
    await over(lab, watched, "MeshdMachineLost")

    # meshd is away.
    await lab.head.run("systemctl", "stop", "meshd")
    await lab.until(lambda: watched.fires("MeshdAbsent"), "meshd's absence is told")
    await lab.head.run("systemctl", "start", "meshd")
    await over(lab, watched, "MeshdAbsent")


async def over(lab: Lab, server: Prometheus, alert: str) -> None:
    """Wait until an alert has resolved."""

    async def look() -> bool:
        return not await server.fires(alert)

    await lab.until(look, f"{alert} is over")


@pytest.mark.nightly
async def test_what_users_jobs_cost(lab: Lab, watched: Prometheus) -> None:
    await lab.have(1)
    await lab.completed(await lab.sbatch("sleep 20"))
    await with_values(lab, watched, [query for query in expressions() if JOB_COST in query])
