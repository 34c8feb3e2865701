"""One provider that cannot be used is off; meshd, and the others, work. Its machines are unknown, never gone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshd import config
from meshd.api import endpoints as e
from meshd.codes import ProblemCode
from meshd.daemon.app import Daemon
from meshd.daemon.main import open_daemon
from meshd.daemon.providers.registry import OffProvider
from meshd.model.ids import MachineName
from meshd.model.machine import Phase
from meshd.model.observed import Unavailable
from tests.unit.worlds import machine

SETTINGS = """
[cluster]
name = "lab"
state_dir = "{0}/state"
socket = "{0}/run/meshd.sock"
[pools.h100]
gpu = "h100"
{1}
"""


class Head:
    """Settings, credentials and the whole daemon, which is made and not started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "state").mkdir()
        (directory / "credentials").mkdir()
        self.daemon: Daemon | None = None

    def credential(self, name: str, content: bytes) -> None:
        (self.directory / "credentials" / name).write_bytes(content)

    def make(self, providers: str) -> Daemon:
        path = self.directory / "meshd.toml"
        path.write_text(SETTINGS.format(self.directory, providers))
        self.daemon = open_daemon(config.load(path), path)
        return self.daemon


@pytest.fixture
async def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Head]:
    made = Head(tmp_path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    yield made
    if made.daemon is not None:
        for provider in made.daemon.ports.providers.values():
            await provider.aclose()
        made.daemon.journal.close()


def told(daemon: Daemon) -> dict[str, str]:
    """The problems about providers that are off, with their cures."""
    return {
        p.text.partition(" ")[0]: f"{p.text} | {p.cure}"
        for p in daemon.head.service.problems()
        if p.code == ProblemCode.PROVIDER_OFF
    }


@pytest.mark.parametrize(
    ("provider", "table", "spoil", "file"),
    [
        ("lambda", "", lambda head: head.credential("lambda_api_key", b""), "/etc/meshd/credentials/lambda/api_key"),
        ("lambda", "", lambda head: head.credential("lambda_api_key", b"\xff\xfe"), "credentials/lambda/api_key"),
        ("lambda", "", lambda head: head.credential("lambda_api_key", b"a b\nc"), "credentials/lambda/api_key"),
        ("lambda", 'api_key_file = "/no/such/key"', lambda head: None, "/no/such/key"),
        ("lambda", 'api_key_file = "/etc"', lambda head: None, "/etc"),
        ("lambda", "regoins = []", lambda head: None, "providers.lambda.regoins"),
        ("gce", "", lambda head: head.credential("gce_service_account", b"no json"), "credentials/gce/service_account"),
        ("gce", "", lambda head: head.credential("gce_service_account", b"{}"), "credentials/gce/service_account"),
        ("aws", 'regions = ["us-*"]', lambda head: None, 'providers.aws.regions[0] = "us-*"'),
        ("aws", 'regions = ["us-esat-1"]', lambda head: None, "providers.aws.regions"),
        ("aws", 'regions = ["us-east-1"]\nzones = ["eu-west-1a"]', lambda head: None, "none of the regions"),
        ("aws", 'images = { "us-east-1/x86_64" = "ubuntu" }', lambda head: None, "us-east-1/x86_64"),
        ("aws", "prices = { x = 0 }", lambda head: None, "providers.aws.prices.x = 0"),
        ("gce", 'regions = ["us-central"]', lambda head: None, "providers.gce.regions"),
        ("runpod", "", lambda head: head.credential("runpod_api_key", b"\n"), "credentials/runpod/api_key"),
        ("paperspace", "", lambda head: head.credential("paperspace_api_key", b""), "credentials/paperspace/api_key"),
        ("lamda", "", lambda head: None, "did you mean lambda?"),
    ],
)
async def test_a_faulty_provider_is_off_alone(
    head: Head, provider: str, table: str, spoil: Callable[[Head], None], file: str
) -> None:
    spoil(head)
    daemon = head.make(f"[providers.{provider}]\n{table}\n[providers.aws2]\nenabled = false\n")
    found = told(daemon)
    assert found.keys() == {provider}
    assert file in found[provider] and "`systemctl restart meshd`" in found[provider]
    assert os.environ["CREDENTIALS_DIRECTORY"] not in found[provider], "systemd's copy is nothing that people mend"


async def test_the_others_work_and_its_machines_are_unknown(head: Head) -> None:
    head.credential("lambda_api_key", b"")
    head.credential("paperspace_api_key", b"good")
    daemon = head.make("[providers.lambda]\n[providers.paperspace]\n")
    assert isinstance(daemon.ports.providers["lambda"], OffProvider)
    assert not isinstance(daemon.ports.providers["paperspace"], OffProvider)
    offer = replace(machine(Phase.READY).offer, provider="lambda")  # type: ignore[arg-type]
    for number, phase in enumerate((Phase.READY, Phase.TERMINATING, Phase.LAUNCHING), 1):
        now = daemon.ports.clock.now()
        one = replace(
            machine(phase, index=number), name=MachineName(f"lab-h100-{number}-aaaaaa"), provider=offer.provider,
            offer=offer, instance_id=f"i-{number}", phase_since=now, created_at=now, launched_at=now,
        )  # fmt: skip
        daemon.journal.put(one, "phase", "given", now)
    await daemon.sources.listings["lambda"].read_once()
    await daemon.sources.offers["lambda"].read_once()
    daemon.machines.controller.tick()
    tick = daemon.machines.controller.last
    assert tick is not None
    assert isinstance(tick.snapshot.instances["lambda"], Unavailable)
    api = daemon.head.service.handlers()
    view = await api.call(e.NODES)
    assert {row.phase for row in view.nodes} == {"ready", "terminating", "launching"}
    status = await api.call(e.STATUS)
    about = [p.code for p in status.problems if "lambda" in p.text]
    assert about.count(ProblemCode.PROVIDER_OFF) == 1
    assert not {ProblemCode.PROVIDER_UNREADABLE, ProblemCode.OFFERS_UNREADABLE} & {*about}, "what is off is told once"
    rows = {row.name: row for row in (await api.call(e.DOCTOR)).checks}
    assert (rows["provider lambda"].status, rows["provider lambda"].code) == ("fail", ProblemCode.PROVIDER_OFF)
    assert "/etc/meshd/credentials/lambda/api_key" in rows["provider lambda"].text


async def test_a_provider_without_a_key_names_the_file_to_put_it_into(head: Head) -> None:
    daemon = head.make("[providers.lambda]\n[providers.paperspace]\n[providers.runpod]\n")
    for name in ("lambda", "paperspace", "runpod"):
        seen = await daemon.sources.listings[name].read_once()
        assert isinstance(seen, Unavailable)
        assert f"/etc/meshd/credentials/{name}/api_key" in seen.reason and seen.kind == "auth_failed"


async def test_settings_that_can_hardly_be_meant_are_told_and_meshd_runs(head: Head) -> None:
    daemon = head.make('[pools.a]\ngpu = "h1000"\n')
    (problem,) = [p for p in daemon.head.service.problems() if p.code == ProblemCode.SETTINGS_DOUBTFUL]
    assert "h1000" in problem.text and "h100" in problem.cure
    rows = {row.name: row for row in (await daemon.head.service.handlers().call(e.DOCTOR)).checks}
    assert (rows["settings"].status, rows["settings"].code) == ("warn", ProblemCode.SETTINGS_DOUBTFUL)


PLUGINS = {
    "raises": "raise RuntimeError('no luck')",
    "lacks": "x = 1",
    "syntax": "def create(:",
    "exits": "import sys; sys.exit(3)",
    "imports": "import no_such_module_here",
    "constructor": "def create(context): raise ValueError('broken inside')",
    "odd": "def create(context): return object()",
}


async def test_a_plug_in_that_fails_in_any_way_is_off_alone(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    site = head.directory / "site"
    info = site / "plugins-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1\n")
    lines = [f"{name} = plugin_for_test_{name}:create" for name in PLUGINS]
    (info / "entry_points.txt").write_text("\n".join(["[meshd.providers]", *lines]) + "\n")
    for name, text in PLUGINS.items():
        (site / f"plugin_for_test_{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(site))
    daemon = head.make("\n".join(f"[providers.{name}]" for name in PLUGINS))
    assert told(daemon).keys() == PLUGINS.keys()
