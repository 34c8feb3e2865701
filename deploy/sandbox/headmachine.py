"""The head of a sandbox: a machine with slurmctld, munge and tailscale on which meshd is installed as on a real one."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.sandbox import proc
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.images import HEAD, UML
from deploy.sandbox.nspawn import Bind
from deploy.sandbox.world import EXPORTED, World

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "head"
SOURCE = "/srv/meshd"
USER = "demo"
"""Somebody who uses the cluster. No image has the account: meshd gives it to the nodes."""
BOOT_TIMEOUT_S = 90.0
MLFLOW_INSTALL = f"{SOURCE}/deploy/services/mlflow/install"
MLFLOW_SETTINGS = '\n[mlflow]\nenabled = true\nartifacts = "/srv/data/mlflow"\n'

SLURM_CONF = """\
# The site's own slurm.conf. `meshctl init` adds to it what meshd needs.
ClusterName=sandbox
SlurmctldHost=head(@HEAD_IP@)
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
# Machines of a sandbox share one kernel: no cgroups, and any number of CPUs may be claimed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
MinJobAge=3600
"""


CGROUP_CONF = "CgroupPlugin=disabled\n"
"""slurmd refuses a machine whose kernel mounts both generations of control groups, which is the host's affair here."""


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """How the head is set up.

    Attributes:
        settings: the whole of meshd.toml.
        credentials: name below /etc/meshd/credentials, e.g. "tailscale/auth_key", to content.
        login_server: the sandbox's control server.
        auth_key: with which the head itself joins.
        slurm_conf: slurm.conf as the site has it before `meshctl init`.
        share: nodes have the head's /home and /srv/data.
        accounting: slurmdbd keeps the records of jobs, so that `sacct` answers.
        mlflow: MLflow runs on the head; `settings` has `MLFLOW_SETTINGS`, and the head boots from "head-mlflow".
    """

    settings: str
    credentials: dict[str, str]
    login_server: str
    auth_key: str
    slurm_conf: str = SLURM_CONF
    accounting: bool = False
    share: bool = False
    mlflow: bool = False


class Head:
    """The head machine of a world, once `bring_up` has ended.

    Args:
        world: the sandbox.
        image: what it boots from; "head-uml" gives it a kernel of its own, with the kernel's NFS server.
        gpus: how many it has.
    """

    def __init__(self, world: World, image: str = HEAD, gpus: int = 0) -> None:
        self.world = world
        self._image = image
        self._gpus = gpus
        self.tailnet_ip = ""

    async def run(self, *argv: str, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> proc.Result:
        """Run a program on the head as root."""
        return await self.world.hypervisor.run(NAME, argv, stdin=stdin, timeout_s=timeout_s, check=check)

    async def root(self) -> Path:
        """Its file system as the host sees it. Raises RuntimeError where it has a kernel of its own."""
        return await self.world.hypervisor.root(NAME)

    async def socket(self, path: str) -> Path:
        """One of its Unix sockets, as the host can connect to it."""
        return await self.world.hypervisor.socket(NAME, path)

    async def shell(self, script: str, *, timeout_s: float = 60.0, check: bool = True) -> str:
        """Run a few lines of sh on the head; returns what they printed."""
        result = await self.run("sh", "-ec", script, timeout_s=timeout_s, check=check)
        return result.text

    async def write(self, path: str, text: str, mode: str = "0644") -> None:
        """Put a file onto the head."""
        await self.run("sh", "-ec", f'umask 077; mkdir -p "$(dirname "{path}")"; cat >"{path}"; chmod {mode} "{path}"',
                       stdin=text.encode())  # fmt: skip

    async def json(self, *argv: str) -> Any:
        """The JSON that a program prints, e.g. `meshctl -o json status`."""
        return json.loads((await self.run(*argv)).stdout)

    async def boot(self) -> None:
        """Boot the machine and wait until systemd is through. Raises TimeoutError."""
        if self._image.endswith(UML):
            spec, shared = MachineSpec(name=NAME, user_data="", image=self._image, gpus=self._gpus), []
        else:
            spec = MachineSpec(name=NAME, user_data="#cloud-config\n", image=self._image, gpus=self._gpus)
            shared = [Bind(self.world.share / path.lstrip("/"), path, writable=True) for path in EXPORTED]
        await self.world.hypervisor.boot(spec, [Bind(CHECKOUT, SOURCE), *shared])
        state = ""
        async with asyncio.timeout(BOOT_TIMEOUT_S):
            while state not in {"running", "degraded"}:
                # Before systemd listens on its bus, --wait does not wait but says "offline".
                await asyncio.sleep(0.1)
                state = (await self.run("systemctl", "is-system-running", "--wait", check=False)).text

    async def join_tailnet(self, options: HeadOptions) -> None:
        """`tailscale up`, as an administrator would."""
        await self.write("/root/tailscale.key", options.auth_key, "0600")
        await self.run(
            "tailscale", "up", f"--login-server={options.login_server}", "--auth-key=file:/root/tailscale.key",
            "--hostname=head", "--accept-dns=false", "--timeout=30s", timeout_s=45,
        )  # fmt: skip
        self.tailnet_ip = (await self.run("tailscale", "ip", "-4")).text

    async def install(self, source: str = SOURCE) -> None:
        """Install meshd from the checkout, or another one on the head, as README says for a real head."""
        await self.run(f"{source}/deploy/head/install", "--offline", timeout_s=180)

    async def prepare_slurm(self, options: HeadOptions) -> None:
        """A user of the cluster, and Slurm's files as the site has them before `meshctl init`."""
        await self.run("useradd", "--create-home", "--comment", "A user of the cluster", USER)
        await self.write("/etc/slurm/slurm.conf", options.slurm_conf.replace("@HEAD_IP@", self.tailnet_ip))
        await self.write("/etc/slurm/cgroup.conf", CGROUP_CONF)
        await self.run("sed", "-i", "/[[:space:]]head$/d", "/etc/hosts")
        await self.shell(f"echo '{self.tailnet_ip} head' >>/etc/hosts")
        await self.run("install", "-d", "-o", "slurm", "-g", "slurm", "/var/spool/slurmctld", "/var/log/slurm")

    async def configure(self, options: HeadOptions) -> None:
        """`prepare_slurm`, settings, credentials, and `meshctl init`."""
        await self.prepare_slurm(options)
        await self.write("/etc/meshd/meshd.toml", options.settings)
        for name, content in options.credentials.items():
            await self.write(f"/etc/meshd/credentials/{name}", content, "0600")
        accounting = ["--accounting"] if options.accounting else []
        await self.run("meshctl", "init", "--yes", *accounting, timeout_s=120)
        if options.share:
            await self.run("meshctl", "init", "--share", "--yes")

    async def start(self) -> None:
        """Start munge, slurmctld and meshd, in this order; meshd says itself when it is ready."""
        await self.shell(
            textwrap.dedent("""\
                systemctl start munge slurmctld
                systemctl enable -q --now meshd-slurm.path meshd-slurmctld.path meshd-munge.path meshd-hosts.path \
                    meshd-exports.path
                systemctl enable -q meshd
                systemctl start meshd
                """),
            timeout_s=180,
        )

    async def bring_up(self, options: HeadOptions, say: Callable[[str], None] = lambda _: None) -> None:
        """All of the above; `say` is told each step. Raises RuntimeError or CommandError with what failed."""
        say("the head boots")
        await self.boot()
        say("it joins the tailnet, meshd is installed")
        await asyncio.gather(self.join_tailnet(options), self.install())
        await self.run("tailscale", "set", "--operator=slurm")
        say("settings, credentials, meshctl init")
        await self.configure(options)
        say("munge, slurmctld and meshd start")
        await self.start()
        if options.mlflow:
            say("MLflow starts")
            await self.run(MLFLOW_INSTALL, "--offline")

    async def journal(self, *units: str, lines: int = 200) -> str:
        """The newest log lines of units."""
        words: Sequence[str] = [word for unit in units for word in ("-u", unit)]
        return (await self.run("journalctl", "--no-pager", "-n", str(lines), *words, check=False)).text
