"""Root's key for the nodes, as the daemon sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.daemon.nodes.ssh_key import HeadKey
from meshd.model.machine import Phase
from tests.live import live_settings
from tests.unit.daemon.small import Small
from tests.unit.worlds import machine

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKlhJvVt0yM2bB1xw2Yq0JbW3n0m8rZcVxkq1R4mS1dX"
OTHER = KEY.replace("KlhJ", "OTHR")


def put(path: Path, key: str = KEY, mode: int = 0o600) -> None:
    path.write_text("private")
    path.chmod(mode)
    public = path.with_name(path.name + ".pub")
    public.write_text(f"{key} root on the head\n")
    os.utime(public, ns=(public.stat().st_mtime_ns, public.stat().st_mtime_ns + 10**9))


async def test_the_section_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    small, key, head = Small(tmp_path), HeadKey(path), ["100.64.0.1"]

    async def no_prolog() -> str:
        return ""

    settings = NodeSettings(
        live_settings(), small.journal, small.agents, small.reports, small.clock, {},  # type: ignore[arg-type]
        task_prolog=no_prolog, head=lambda: head[0], ssh_key=key.public,
    )  # fmt: skip
    ready = machine(Phase.READY)

    def value() -> object:
        settings.look()
        return settings.of(ready)["ssh_key"].value

    assert value() == {"key": "", "from": ""}
    put(path)
    assert value() == {"key": KEY, "from": "100.64.0.1"}
    put(path, OTHER)
    assert value() == {"key": OTHER, "from": "100.64.0.1"}
    path.with_name("id_ed25519.pub").unlink()
    assert value() == {"key": OTHER, "from": "100.64.0.1"}, "`meshctl init` makes another one in a moment"
    path.with_name("id_ed25519.pub").write_text("ssh-ed25519 AAAA\nevil")
    assert value() == {"key": OTHER, "from": "100.64.0.1"}
    head[0] = "100.64.0.2"
    assert value() == {"key": OTHER, "from": "100.64.0.2"}
    small.journal.close()


@pytest.mark.skipif(os.getuid() != 0, reason="the key is root's")
async def test_doctor(tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    key = HeadKey(path)
    assert ((await key.check()).status, (await key.check()).code) == ("warn", "no_ssh_key")
    put(path)
    assert (await key.check()).status == "ok"
    put(path, mode=0o640)
    assert ((await key.check()).status, (await key.check()).code) == ("fail", "ssh_key_exposed")
    path.unlink()
    assert (await key.check()).code == "no_ssh_key"
