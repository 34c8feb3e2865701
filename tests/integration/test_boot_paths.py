"""Stage 1's part on the tailnet, for every state that a machine may boot in, with the real tailscaled.

The key that the machine joined with is dead at its next boot, and control refuses it even from a machine that is well:
whoever hands it over makes a zombie. So each test looks at what was handed over, and at who is online in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import SecretStr

from deploy.node.meshd_node.login import login_wanted, refused_login
from meshd.bootstrap.stage1 import Stage1
from meshd.runtime.clock import SystemClock
from meshd.tailnet.admin import TailscaleAdmin
from meshd.tailnet.adminhttp import AdminHttp, ApiToken
from tests.integration.tailnet_lab import ADDRESS, API_TOKEN, TailnetLab, tailnet_lab
from tests.unit.node.stage1_alone import alone
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

NAME = "lab-a100-3-k7q2mz"
SETTINGS = f"--hostname={NAME} --accept-dns=false --timeout=30s --login-server=http://{ADDRESS}:8080"

RECORDER = """#!/bin/sh
case "$1" in status) echo status >>{root}/looks ;; *) printf '%s\\n' "$*" >>{root}/calls ;; esac
exec ip netns exec {namespace} {program} --socket={socket} "$@"
"""
"""`tailscale` as the script finds it: writes down what it is told."""

THEN = """PATH={root}/bin:$PATH
sleep() {{ command sleep 0.05; }}  # between two tries as between two looks
mkdir -p "$ETC"
join_tailnet"""


class Boots:
    """One machine that boots again and again, and the auth key that its user data carries."""

    def __init__(self, lab: TailnetLab, admin: TailscaleAdmin, root: Path) -> None:
        self.lab = lab
        self.admin = admin
        self.root = root
        self.key = f"{root}/etc/meshd-node/tailscale.key"
        (root / "bin").mkdir()
        recorder = root / "bin/tailscale"
        program = lab.folder / "bin/tailscale"
        recorder.write_text(
            RECORDER.format(root=root, namespace=lab.namespace, program=program, socket=lab.socket_of(NAME))
        )
        recorder.chmod(0o755)

    async def stage1(self, secret: str) -> tuple[int, str]:
        """Run the part on the tailnet; its exit code, and what it said."""
        stage = Stage1(
            machine=NAME, heads=("100.64.0.1",), port=7677, auth_key=SecretStr(secret), join_token=SecretStr("J" * 64),
            agent_sha256="0" * 64, login_server=f"http://{ADDRESS}:8080", tries=2,
        )  # fmt: skip
        script = self.root / "stage1.sh"
        script.write_text(alone(stage, self.root, THEN.format(root=self.root)))
        process = await asyncio.create_subprocess_exec(
            "sh", str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(100):
            out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()

    def calls(self) -> list[str]:
        """What `tailscale` was told since the last time, but for looks at the status."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        (self.root / "looks").unlink(missing_ok=True)
        return lines

    async def status(self) -> dict[str, Any]:
        return await self.lab.status(NAME, peers=False)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for tailscaled to say something."""
        await until(self.status, condition, "tailscaled says it")

    async def looked(self, times: int) -> None:
        """Wait until stage 1 has asked tailscaled so often."""
        looks = self.root / "looks"

        async def count() -> int:
            return looks.read_text().count("\n") if looks.exists() else 0

        await until(count, lambda seen: seen >= times, f"stage 1 asked tailscaled {times} times")

    async def restart(self) -> None:
        """tailscaled as after a reboot: it has its state, and answers."""
        self.lab.kill(NAME)
        self.lab.start(NAME)
        await self.lab.answers(NAME)

    async def device(self) -> tuple[str, str, bool]:
        """Id, address and online of the one device that there is, as control has it."""
        (device,) = await self.admin.list_devices()
        return device.id, device.tailnet_ip, device.last_seen is None

    async def mint(self) -> tuple[str, str]:
        """A new key: id and secret."""
        made = await self.admin.mint_key(tags=("tag:gpu",), lifetime_s=86400, description="test")
        assert made.secret is not None
        return made.id, made.secret.get_secret_value()

    async def well(self) -> None:
        """It is online, by its own word and by control's."""
        await self.lab.online(NAME)
        await until(self.device, lambda seen: seen[2], "control has it as connected")


@pytest.fixture
async def boots() -> AsyncIterator[Boots]:
    with TemporaryDirectory(prefix="bp") as folder:
        async with tailnet_lab(Path(folder)) as lab:
            admin = TailscaleAdmin(AdminHttp(lab.api_url, ApiToken(SecretStr(API_TOKEN)), SystemClock()))
            root = Path(folder) / "machine"
            root.mkdir()
            yield Boots(lab, admin, root)
            await admin.aclose()


@asynccontextmanager
async def joined(boots: Boots) -> AsyncIterator[str]:
    """The machine has joined by its first boot, and the key of its user data is dead since; that key.

    In the end the machine must be the same device, and well.
    """
    key_id, secret = await boots.mint()
    boots.lab.start(NAME)
    await boots.lab.answers(NAME)
    code, said = await boots.stage1(secret)
    assert code == 0, said
    assert boots.calls() == [f"up --auth-key=file:{boots.key} {SETTINGS}"], "the first boot gives the key"
    device, address, _ = await boots.device()
    await boots.admin.revoke_key(key_id)
    yield secret
    await boots.well()
    assert (await boots.device())[:2] == (device, address)


async def test_a_dead_key_on_a_new_machine_is_told_and_tried_twice(boots: Boots) -> None:
    key_id, secret = await boots.mint()
    await boots.admin.revoke_key(key_id)
    boots.lab.start(NAME)
    await boots.lab.answers(NAME)
    code, said = await boots.stage1(secret)
    assert code == 1
    assert "is the auth key expired, revoked or used up?" in said
    assert secret not in said
    assert boots.calls() == [f"up --auth-key=file:{boots.key} {SETTINGS}"] * 2
    assert await boots.admin.list_devices() == ()


async def test_running(boots: Boots) -> None:
    async with joined(boots) as secret:
        assert await boots.stage1(secret) == (0, "")
        assert boots.calls() == []


async def test_it_comes_up_while_stage_1_looks(boots: Boots) -> None:
    """tailscaled has just begun: NoState or Starting, then Running."""
    async with joined(boots) as secret:
        await boots.restart()
        assert await boots.stage1(secret) == (0, "")
        assert boots.calls() == []


async def test_control_is_away_at_first(boots: Boots) -> None:
    """tailscaled stays in NoState until control answers; it has a node key, and is only waited for."""
    async with joined(boots) as secret:
        boots.lab.signal("control", signal.SIGSTOP)
        await boots.restart()
        await boots.until(lambda status: bool(status["BackendState"] == "NoState"))
        running = asyncio.create_task(boots.stage1(secret))
        await boots.looked(5)
        boots.lab.signal("control", signal.SIGCONT)
        assert await running == (0, "")
        assert boots.calls() == []


async def test_tailscaled_does_not_answer_at_first(boots: Boots) -> None:
    """No answer is not "no node key"."""
    async with joined(boots) as secret:
        boots.lab.kill(NAME)
        running = asyncio.create_task(boots.stage1(secret))
        await boots.looked(3)
        boots.lab.start(NAME)
        assert await running == (0, "")
        assert boots.calls() == []


async def test_stopped(boots: Boots) -> None:
    async with joined(boots) as secret:
        await boots.lab.tailscale(NAME, "set", "--shields-up")  # `up` with some settings would want all of them
        await boots.lab.tailscale(NAME, "down")
        await boots.restart()
        await boots.until(lambda status: bool(status["BackendState"] == "Stopped"))
        assert await boots.stage1(secret) == (0, "")
        assert boots.calls() == ["up"]
        assert json.loads(await boots.lab.tailscale(NAME, "debug", "prefs"))["ShieldsUp"] is True


async def test_a_zombie(boots: Boots) -> None:
    """Somebody's own boot script has handed the dead key over before."""
    async with joined(boots) as secret:
        await boots.lab.up_refused(NAME, f"--auth-key={secret}", *SETTINGS.split())
        await boots.until(lambda status: "invalid key" in refused_login(status) and status["BackendState"] == "Running")
        code, said = await boots.stage1(secret)
        assert code == 0, said
        assert boots.calls() == [f"up --auth-key=file:/dev/null {SETTINGS}"]


async def test_an_expired_node_key(boots: Boots) -> None:
    """The one case in which a machine with a state is given a key: that which is stored, not that of its user data."""
    async with joined(boots) as secret:
        device, _, _ = await boots.device()
        await boots.lab.api("POST", f"device/{device}/expire")
        await boots.restart()
        await boots.until(lambda status: status["BackendState"] == "NeedsLogin" and login_wanted(status))
        _, new = await boots.mint()
        Path(boots.key).write_text(new + "\n")
        assert await boots.stage1(secret) == (0, "")
        assert boots.calls() == [f"up --auth-key=file:{boots.key} {SETTINGS}"]


async def test_logged_out(boots: Boots) -> None:
    """NeedsLogin without a node key; the machine key is the same, so it is the same device."""
    async with joined(boots) as secret:
        await boots.lab.tailscale(NAME, "logout")
        await boots.until(lambda status: not status.get("HaveNodeKey"))
        _, new = await boots.mint()
        Path(boots.key).write_text(new + "\n")
        assert await boots.stage1(secret) == (0, "")
        assert boots.calls() == [f"up --auth-key=file:{boots.key} {SETTINGS}"]
