"""The documents name what the code has: settings with their defaults, commands, and anchors that messages point to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from meshd.api.node_schema import Verb
from meshd.cli.main import COMMANDS
from meshd.codes import CheckName, DemandCode, EventKind, FaultCode, JoinCode, ProblemCode, RefusalCode, WarningCode
from meshd.config import PoolSettings, ProviderSettings, Settings, ShareSettings
from meshd.contract.faults import FaultKind
from meshd.daemon.live_settings import RELOADABLE
from meshd.model.machine import MOVES, FailureCause, UnfitReason
from meshd.plan.alternatives import OfferRule
from meshd.slurm.init import codes as init_codes
from providers._settings import AdapterSettings
from providers.aws.settings import AwsSettings
from providers.gce.settings import GceSettings
from providers.lambda_cloud.settings import LambdaSettings
from providers.paperspace.settings import PaperspaceSettings
from providers.runpod.settings import RunpodSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FILES = sorted(DOCS.glob("*.md"))
NEEDS_RESTART = {"slurm.slurmctld_port", "slurm.command_timeout_s"}
"""In tables that are reloaded, but read only when meshd starts."""

TABLES: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
} | {"share.NAME": ShareSettings, "pools.NAME": PoolSettings, "providers.NAME": ProviderSettings}


def _section(text: str, heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert found, f"there is no section {heading}"
    return found[1]


def _rows(text: str) -> dict[str, list[str]]:
    lines = (re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `"))
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


def _default(value: Any) -> str:
    if value is PydanticUndefined or value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(chr(34) + str(one) + chr(34) for one in value)}]`"
    return f"`{value if str(value) else chr(34) * 2}`"


@pytest.mark.parametrize("table", list(TABLES))
def test_every_setting_is_described(table: str) -> None:
    rows = _rows(_section((DOCS / "configuration.md").read_text(), f"[{table}]"))
    fields = TABLES[table].model_fields
    assert rows.keys() == fields.keys()
    for name, (default, meaning, reload) in rows.items():
        assert default == _default(fields[name].default), f"{table}.{name}"
        assert meaning
        applies = table.split(".")[0] in RELOADABLE and f"{table}.{name}" not in NEEDS_RESTART
        assert reload == ("yes" if applies else "no"), f"{table}.{name}"


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("[providers.aws]", AwsSettings),
        ("[providers.gce]", GceSettings),
        ("[providers.lambda]", LambdaSettings),
        ("[providers.runpod]", RunpodSettings),
        ("[providers.paperspace]", PaperspaceSettings),
    ],
)
def test_every_setting_of_the_adapters_is_described(heading: str, model: type[AdapterSettings]) -> None:
    rows = _rows(_section((DOCS / "providers.md").read_text(), heading))
    assert rows.keys() == model.model_fields.keys()
    for name, (default, meaning) in rows.items():
        value = model.model_fields[name].default
        assert default in {_default(value), "below"} or value == {}, name
        assert meaning


@pytest.mark.parametrize(
    ("heading", "codes"),
    [
        ("Problems", ProblemCode),
        ("Warnings of a plan", WarningCode),
        ("Demand that cannot be had", DemandCode),
        ("Rules of an offer", OfferRule),
        ("Checks", CheckName),
        ("Events", EventKind),
        ("Refusals of the API", RefusalCode),
        ("Refusals of a machine", JoinCode),
        ("Faults of the settings", FaultCode),
        ("Warnings of init", init_codes.Warn),
        ("Refusals of init", init_codes.Refusal),
    ],
)
def test_every_code_is_described_and_every_described_code_exists(heading: str, codes: type[StrEnum]) -> None:
    chapter = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", (DOCS / "codes.md").read_text(), re.M | re.S)
    assert chapter is not None
    rows = _rows(chapter[1])
    assert rows.keys() == {code.value for code in codes}
    assert all(all(cells) for cells in rows.values())


def test_every_reason_of_an_unfit_node_and_every_cause_of_a_failure_is_described() -> None:
    rows = _rows(_section((DOCS / "troubleshooting.md").read_text(), "Unfit nodes"))
    assert {reason.value for reason in UnfitReason} <= rows.keys()
    text = (DOCS / "architecture.md").read_text()
    table = text[text.index("| cause |") :].partition("\n\n")[0]
    causes = {cause for row in _rows(table) for cause in re.split(r"`, `", row)}
    assert causes == {cause.value for cause in FailureCause if cause}


def test_every_command_is_described() -> None:
    text = (DOCS / "meshctl.md").read_text()
    assert [name for name in COMMANDS if not re.search(rf"^\| `{name}[ `]", text, re.M)] == []


def test_every_verb_of_the_agent_is_named() -> None:
    text = (DOCS / "architecture.md").read_text()
    closed_set = re.search(r"The commands are a\s+closed set: (.*?)\.", text, re.S)
    assert closed_set
    assert set(re.findall(r"`(\w+)`", closed_set[1])) == set(get_args(Verb))


def test_the_map_has_every_package_and_every_module_of_the_agent() -> None:
    the_map = _section((DOCS / "architecture.md").read_text(), "The map")
    packages = {f"{path.parent.name}/" for path in (ROOT / "meshd").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "deploy/node/meshd_node").glob("*.py")} - {"__init__"}
    assert not (packages | modules) - set(re.findall(r"`([^`]+)`", the_map))


def test_every_fault_of_the_sandbox_is_named() -> None:
    rows = (DOCS / "sandbox.md").read_text().partition("| kind | what happens |")[2]
    named = {word for row in re.findall(r"^\| (`.*?) \|", rows, re.M) for word in re.findall(r"`(\w+)`", row)}
    assert named == {kind.value for kind in FaultKind}


def test_every_move_is_in_the_table() -> None:
    rows = _rows(_section((DOCS / "architecture.md").read_text(), "Phases"))
    assert {name: set(re.findall(r"[A-Z]{3,}", cells[1])) for name, cells in rows.items()} == {
        phase.name: {to.name for to in follow} for phase, follow in MOVES.items()
    }


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def _mentions() -> Iterator[tuple[str, str]]:
    """`docs/NAME.md, TITLE` in texts that people are shown."""
    for folder in ("meshd", "providers", "deploy", "systemd"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".sh", ".toml", ".service"}:
                for found in re.finditer(r"docs/([a-z]+\.md)(?:, ([A-Za-z][A-Za-z ]*))?", file.read_text("utf-8")):
                    yield found[1], (found[2] or "").strip()


def test_what_messages_point_to_is_there() -> None:
    mentions = set(_mentions())
    assert ("troubleshooting.md", "auth key") in mentions
    for name, title in mentions:
        assert (DOCS / name).is_file(), name
        assert not title or title.lower().replace(" ", "-") in _anchors(DOCS / name), f"{name}: {title}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_links_between_documents_lead_somewhere(file: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", file.read_text()):
        there = (file.parent / target) if target else file
        assert there.exists(), target
        assert not anchor or anchor in _anchors(there), f"{target}#{anchor}"


def test_the_policy_for_aws_has_the_calls_that_are_made() -> None:
    source = (ROOT / "providers/aws/client.py").read_text()
    calls = set(
        re.findall(
            r"get_paginator\(\"(\w+)\"\)|\.((?:run|describe|terminate|get_console|create|deregister|delete)_\w+)\(",
            source,
        )
    )
    names = {"".join(word.capitalize() for word in (a or b).split("_")) for a, b in calls}
    made = {f"{'pricing' if name == 'GetProducts' else 'ec2'}:{name}" for name in names}
    block = re.search(r"^```json\n(.*?)^```", (DOCS / "providers.md").read_text(), re.M | re.S)
    assert block
    actions = [statement["Action"] for statement in json.loads(block[1])["Statement"]]
    allowed = {one for action in actions for one in (action if isinstance(action, list) else [action])}
    assert allowed == made | {"ec2:CreateTags"}, "RunInstances with TagSpecifications also needs CreateTags"


def test_each_line_of_the_trust_model_names_a_test_that_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", (DOCS / "security.md").read_text())
    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert not missing
