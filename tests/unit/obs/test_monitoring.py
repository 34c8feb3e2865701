"""What is shipped for Prometheus and Grafana: each metric is described, and nothing asks for what there is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from meshd import __version__
from meshd.config import MetricsSettings
from meshd.obs.metrics import Metrics, MetricsSnapshot
from tests.unit.obs.shipped import ALERTS_PAGE, DASHBOARDS, DOCS, PROMETHEUS, anchors, dashboards, panels, rules

FULL = MetricsSnapshot(
    machines={("p", "a", "ready"): 1}, gpus_ready={"p": 1}, gpus_wanted={"p": 1}, usd_per_hour={("p", "a"): 1.0},
    nodes_unfit={("p", "invalid"): 1}, path_direct={("p", "p-1", "direct"): False}, path_rtt_s={("p", "p-1"): 0.1},
    problems={"error": 1}, source_up={"s": True}, source_age_s={"s": 1.0}, breaker_open={"a": True}, tick_age_s=1.0,
    cost_usd={("p", "a"): 1.0}, job_cost_usd={("p", "lab", "ann"): 1.0}, budget_usd={("", "day"): 1.0},
    budget_spent_usd={("", "day"): 1.0}, oldest_in_phase_s={("p", "a", "ready"): 1.0}, jobs={("p", "running"): 1},
    jobs_waiting={("p", "boot"): 1}, node_info={("p", "p-1", "a", "r", "t"): True}, node_load1={("p", "p-1"): 1.0},
    node_heartbeat_age_s={("p", "p-1"): 1.0}, node_gpu_use={("p", "p-1"): 1.0}, node_gpu_memory_b={("p", "p-1"): 1.0},
    auth_key_ends_at=1.0, munge_key_made_at=1.0, rotation_active_s={"auth": 1.0},
)  # fmt: skip
"""Each part has a value, so that each family has a sample."""
NO_FIELDS = re.compile(r"\.id|\.templating\.list\[\d+\]\.definition")
"""Grafana writes both, although its schema lacks them: it numbers what it imports, and shows a query as typed."""
BASE_UNITS = ("seconds", "bytes", "ratio", "usd", "timestamp_seconds")
NOT_BASE = re.compile(r"_(ms|milliseconds|minutes|hours|days|kib|mib|gib|kb|mb|gb|percent)(_|$)")
PARTS = ("_total", "_info", "_bucket", "_count", "_sum")


def declared() -> dict[str, tuple[str, frozenset[str]]]:
    """Of each metric, as PromQL calls it: its type and its labels."""
    metrics = Metrics()
    metrics.provider_calls.labels("aws", "list", "ok").inc()
    metrics.provider_call_seconds.labels("aws", "list").observe(1)
    metrics.provider_calls_in_flight.labels("aws", "list").inc()
    metrics.follow(lambda: FULL)
    found = {}
    for family in metrics.registry.collect():
        if family.name.startswith("process_"):
            continue
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        ending = {"counter": "_total", "info": "_info"}.get(family.type, "")
        kind = "gauge" if family.type == "info" else family.type
        assert family.samples, f"{family.name}: give it a value in FULL"
        found[f"{family.name}{ending}"] = (kind, frozenset(labels))
    return found


def sampled() -> dict[str, frozenset[str]]:
    """Every name that a query may ask for, and its labels: metrics, parts of histograms, recorded sums."""
    found = {}
    for name, (kind, labels) in declared().items():
        found[name] = labels
        if kind == "histogram":
            found |= {f"{name}_{part}": labels | {"le"} for part in ("bucket", "count", "sum")}
    return found


def table(heading: str) -> dict[str, list[str]]:
    """The rows of a table of docs/metrics.md, by their first cell."""
    text = (DOCS / "metrics.md").read_text()
    part = text[text.index(heading) :].partition("\n\n")[0] if heading.startswith("|") else text.partition(heading)[2]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("| `")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version))


def test_the_table_has_each_metric_of_the_code_and_no_other() -> None:
    rows = {name.strip("`"): cells for name, cells in table("| metric |").items()}
    assert rows.keys() == declared().keys()
    for name, (kind, labels, meaning, since, stable) in rows.items():
        told = frozenset(re.findall(r"`(\w+)`", labels))
        assert (kind, told) == declared()[name], name
        assert meaning and stable in {"yes", "no"}
        assert numbers(since) <= numbers(__version__), name


def test_each_label_says_what_bounds_it() -> None:
    rows = table("## Labels")
    bounded = {label for key in rows for label in re.findall(r"`(\w+)`", key)}
    used = {label for _, labels in declared().values() for label in labels}
    assert bounded == used | {"le"}
    assert all(all(cells) for cells in rows.values())


@pytest.mark.parametrize("name", sorted(declared()))
def test_names_follow_the_rules(name: str) -> None:
    kind, _ = declared()[name]
    assert re.fullmatch(r"meshd_[a-z0-9]+(_[a-z0-9]+)*", name)
    assert (kind == "counter") == name.endswith("_total")
    assert not NOT_BASE.search(name), f"base units: {BASE_UNITS}"


# -- what asks for them


def queries() -> Iterator[tuple[str, str]]:
    """(where, expression) of all rules and panels."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for file, board in dashboards():
        for panel in panels(board):
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{file.stem}: {variable['name']}", variable["query"]["query"]


@pytest.mark.parametrize(("where", "expression"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_a_query_asks_for_what_there_is(where: str, expression: str) -> None:
    known, recorded = sampled(), {rule["record"] for rule in rules() if "record" in rule}
    names = re.findall(r"(?<![:\w])meshd_\w+", expression)
    sums = re.findall(r"\w+:meshd_\w+:\w+", expression)
    assert names or sums or "node_" in expression, where
    assert set(names) <= known.keys(), where
    assert set(sums) <= recorded, where
    labels = {label for name in names for label in known[name]} | {"slot", "pool", "key"}
    labels |= {word for name in sums for word in name.partition(":")[0].split("_")} | {"provider", "source"}
    for name, inside in re.findall(r"\b(meshd_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]", inside)) <= known[name], where
    for inside in re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expression):
        if "node_" not in expression:
            assert {one.strip() for one in inside.split(",") if one.strip()} <= labels, where


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_what_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    told = rule["annotations"]
    assert told["summary"] and told["description"]
    page, _, anchor = told["runbook_url"].partition("#")
    assert (page, anchor) == (f"docs/{ALERTS_PAGE.name}", rule["alert"].lower())
    assert anchor in anchors(ALERTS_PAGE)
    section = ALERTS_PAGE.read_text().partition(f"## {rule['alert']}\n\n")[2].partition("\n## ")[0]
    assert section.startswith(f"{rule['labels']['severity'].capitalize()}. ")
    assert "\n1. " in section, "it says what to do"


def test_each_section_of_the_page_is_an_alerts() -> None:
    titles = re.findall(r"^## (\w+)$", ALERTS_PAGE.read_text(), re.M)
    assert titles == [rule["alert"] for rule in alerts()]


def test_the_example_of_a_scrape_fits_the_settings() -> None:
    document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    meshd, nodes = document["scrape_configs"]
    (target,) = meshd["static_configs"][0]["targets"]
    assert MetricsSettings(listen=target).address == ("127.0.0.1", 9679)
    assert nodes["http_sd_configs"][0]["url"] == f"http://{target}/v1/targets?exporter=node"
    assert document["rule_files"] == ["meshd.rules.yml"]


# -- dashboards: what Grafana needs. Grafana itself is in no registry that the tests may use; its schema is.


def _lost(ours: Any, read: Any, at: str = "") -> Iterator[str]:
    """The places of a document that are not there, or differ, in what was read of it."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for name, value in ours.items():
            yield from _lost(value, read[name], f"{at}.{name}") if name in read else (f"{at}.{name}",)
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for number, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from _lost(one, other, f"{at}[{number}]")
    elif ours != read:
        yield at


@pytest.mark.parametrize("board", [board for _, board in dashboards()], ids=[file.stem for file, _ in dashboards()])
def test_grafanas_schema_knows_each_field(board: dict[str, Any]) -> None:
    """Grafana ignores a field that it does not know: what was meant would not be shown."""
    register_default_plugins()

    def lost(document: dict[str, Any]) -> set[str]:
        read = json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
        return {place for place in _lost(document, read) if not NO_FIELDS.fullmatch(place)}

    assert lost(board) == set()
    typed_wrong = json.loads(json.dumps(board))
    typed_wrong["panels"][0]["gridPosition"] = typed_wrong["panels"][0]["gridPos"]
    assert lost(typed_wrong) == {".panels[0].gridPosition"}


@pytest.mark.parametrize(("file", "board"), dashboards(), ids=[file.stem for file, _ in dashboards()])
def test_a_dashboard_can_be_imported(file: Path, board: dict[str, Any]) -> None:
    assert board["schemaVersion"] >= 36 and board["id"] is None
    assert board["uid"] == f"meshd-{file.stem}" and len(board["uid"]) <= 40
    assert board["title"].startswith("meshd / ") and "meshd" in board["tags"]
    first, *rest = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    names = {"datasource", *(variable["name"] for variable in rest)}
    there = panels(board)
    assert len({panel["id"] for panel in there}) == len(there)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in there:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([there, rest])))
    assert used - {"datasource", "__range", "__rate_interval", "__all"} <= names
    assert names - {"datasource"} <= used, "each variable is used"


def test_the_page_names_each_dashboard() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "monitoring.md").read_text().partition("## Grafana")[2], re.M)
    boards = [file.stem for file in sorted(DASHBOARDS.glob("*.json"))]
    assert sorted(named[: len(boards)]) == boards
