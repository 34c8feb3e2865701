"""A share by the kernels' own NFS: a server and nodes in user-mode Linux, over a long way on the tailnet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from deploy.sandbox import proc
from deploy.sandbox.headmachine import CHECKOUT, SOURCE
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.nspawn import Bind, NspawnHypervisor
from deploy.sandbox.tailnet import CONTROL_URL
from deploy.sandbox.world import World
from tests.e2e.lab import USER, Lab
from tests.waiting import until

BOOT_S = 240.0
NAME = "files"
HOME = f"/home/{USER}"
PORT = 2049
LEASE_S = 5
QUICK_LEASE = f"[nfsd]\ngrace-time={LEASE_S}\nlease-time={LEASE_S}\n"
"""nfs.conf(5). By default a server that boots waits 90 s for its clients of before, and nobody writes meanwhile."""

PYTHON = "/opt/meshd/venv/bin/python"
SET_UP = """
import sys
from pathlib import Path
from meshd.plan.shares import shares_in
from meshd.shares import setup, setup_io
settings = Path("/etc/meshd/meshd.toml")
read = shares_in(settings.read_bytes())
assert not read.fault, read.fault
state = setup_io.read(settings, read.shares, sys.argv[1])
setup_io.apply(setup.plan(state, str(settings)), print)
"""
UNITS = ("meshd-exports.path", "meshd-exports.service")

WRITES = """\
i=0
until [ -e {home}/stop ]; do
    i=$((i + 1))
    echo "$i $(date +%s.%N)" >>{home}/lines
    sync {home}/lines
    sleep 0.2
done
"""
"""A job that writes a numbered line five times a second, each to the server's disk."""


class Server:
    """An NFS server beside the head, set up by what `meshctl init --share` and root's unit run on a head."""

    def __init__(self, world: World, auth_key: str) -> None:
        self._vm = world.hypervisor
        self._auth_key = auth_key
        self.ip = ""
        """Its address on the tailnet."""

    async def run(self, *argv: str, check: bool = True, timeout_s: float = 90.0, stdin: bytes = b"") -> proc.Result:
        """Run a program there as root."""
        return await self._vm.run(NAME, argv, check=check, timeout_s=timeout_s, stdin=stdin)

    async def shell(self, script: str, *, timeout_s: float = 90.0) -> str:
        """Run a few lines of sh there."""
        return (await self.run("sh", "-ec", script, timeout_s=timeout_s)).text

    async def boot(self) -> None:
        """Boot it. It joins the tailnet, and serves nothing yet."""
        await self._vm.boot(MachineSpec(name=NAME, user_data="", image="head-uml"), [Bind(CHECKOUT, SOURCE)])
        await self._vm.run(NAME, ["systemctl", "stop", "nfs-server"], timeout_s=BOOT_S)
        self.ip = await join_tailnet(self._vm, NAME, self._auth_key)

    async def put_user(self, uid: str) -> None:
        """Make the user of the head, with a home that is the user's alone."""
        await self.shell(f"useradd --uid {uid} --create-home {USER}; chmod 0700 {HOME}")

    async def set_up(self) -> None:
        """Begin to serve, to nobody yet."""
        await self.shell(f"echo {SOURCE} >$(echo /opt/meshd/venv/lib/python3*/site-packages)/sandbox.pth")
        await self._write("/etc/meshd/meshd.toml", '[share.home]\npath = "/home"\n')
        await self._write("/etc/nfs.conf.d/lease.conf", QUICK_LEASE)
        for unit in UNITS:
            await self._write(f"/etc/systemd/system/{unit}", (CHECKOUT / "systemd" / unit).read_text())
        await self.shell("install -d -o slurm -g slurm /run/meshd; systemctl daemon-reload")
        await self.run(PYTHON, "-c", SET_UP, self.ip, timeout_s=180)

    async def export(self, addresses: Sequence[str]) -> None:
        """Ask root's unit to export to these nodes, as meshd does, and wait until it is so."""
        request = json.dumps({"addresses": list(addresses)})
        await self.run(
            *("setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "sh", "-ec"),
            "umask 077; cat >/run/meshd/.request; mv /run/meshd/.request /run/meshd/exports.request",
            stdin=request.encode(),
        )
        wanted = {f"/home {address}" for address in addresses}
        await until(self.exported, lambda found: found == wanted, "the exports are in force", 60)

    async def exported(self) -> set[str]:
        """`PATH ADDRESS` of each export in force."""
        text = (await self.run("cat", "/var/lib/nfs/etab", check=False)).text
        return {line.partition("(")[0].replace("\t", " ") for line in text.splitlines()}

    async def lines(self) -> list[tuple[int, float]]:
        """Number and time of each line that the job wrote, as far as they are here."""
        text = (await self.run("cat", f"{HOME}/lines", check=False)).text
        return [(int(number), float(at)) for number, at in (line.split() for line in text.splitlines())]

    async def _write(self, path: str, text: str) -> None:
        await self.run("sh", "-ec", f'mkdir -p "$(dirname {path})"; cat >{path}', stdin=text.encode())


async def join_tailnet(vm: NspawnHypervisor, machine: str, auth_key: str) -> str:
    """`tailscale up`, once the machine lets ssh in; its address on the tailnet."""
    up = ["tailscale", "up", f"--login-server={CONTROL_URL}", f"--auth-key={auth_key}", "--accept-dns=false"]
    await vm.run(machine, [*up, f"--hostname={machine}", "--timeout=60s"], timeout_s=BOOT_S)
    return (await vm.run(machine, ["tailscale", "ip", "-4"])).text


def pauses(lines: Sequence[tuple[int, float]], at_least_s: float) -> list[float]:
    """How long the job stood still, where that was so long, in seconds. Raises AssertionError where a line is lost."""
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1)), "a line is missing or twice"
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(lines)]
    return [gap for gap in gaps if gap >= at_least_s]


async def distant(world: World, machines: Sequence[str], delay_ms: float) -> None:
    """Let each of these machines send so much later: the way there and back takes twice as long."""
    for machine in machines:
        words = ["tc", "qdisc", "replace", "dev", "host0", "root", "netem", "delay", f"{delay_ms}ms", "limit", "10000"]
        await world.hypervisor.run(machine, words, timeout_s=60)


def host_name(lab: Lab, machine: str) -> str:
    """What the sandbox calls a rented machine."""
    (found,) = [one for one in lab.all_alive() if one.token == machine]
    return found.name
