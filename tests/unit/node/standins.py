"""Programs that behave like Slurm's, munge's and NVIDIA's for the node agent, and handlers for the node API."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from meshd.api.node_api import NodeApi
from meshd.api.node_commands import Command, CommandQueue
from meshd.api.node_schema import JoinAnswer, Needs, PollIn, ResultIn, key_b64
from meshd.bootstrap import tokens
from meshd.bootstrap.assets import agent_zipapp
from meshd.bootstrap.tokens import JoinTicket, NodeCaller
from meshd.errors import JoinRefused, MungeError
from meshd.model.hardware import NodeFacts
from meshd.model.observed import TailnetPeer
from meshd.plan.admission import check_facts

POD = Path(__file__).resolve().parents[3] / "deploy/container"
MACHINE = "mesh-h100-1-k7q2mz"
KEY = bytes(range(256)) * 4
OTHER_KEY = bytes(reversed(range(256))) * 4
WITHIN_S = 60.0
"""For what programs do: on a busy machine a Python alone takes seconds to start."""

_MUNGED = r"""
import hashlib, pathlib, socketserver, sys
args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
key = pathlib.Path(args["--key-file"]).read_bytes()
mine = "MUNGE:" + hashlib.sha256(key).hexdigest() + ":"
path = pathlib.Path(args["--socket"])
path.unlink(missing_ok=True)
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode().split()
        if line and line[0] == "encode":
            self.wfile.write(mine.encode())
        elif line:
            self.wfile.write(b"0" if line[1] == mine else b"14")
socketserver.UnixStreamServer(str(path), Handler).serve_forever()
"""
_MUNGE_CALL = r"""
import os, pathlib, socket, sys
root = pathlib.Path(os.environ["STANDIN_ROOT"])
line = sys.stdin.read().strip()
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
try:
    s.connect(str(root / "run/munge/munge.socket.2"))
except OSError as error:
    sys.exit("Error: Failed to access munge.socket.2: %s" % error)
s.sendall((WHAT + line + "\n").encode())
answer = s.recv(4096).decode()
"""
_MUNGE = _MUNGE_CALL.replace("WHAT", '"encode "') + "print(answer)\n"
_UNMUNGE = _MUNGE_CALL.replace("WHAT", '"decode "') + "sys.exit(int(answer))\n"
_SLURMD = """
case "$1" in
-C) echo "NodeName=x CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=128000"
    echo "UpTime=0-00:10:00"; exit;;
-V) echo "slurm 24.11.5"; exit;;
esac
echo "$$ $*" >> "$STANDIN_ROOT/slurmd.calls"
while :; do sleep 0.1; done
"""


def program(directory: Path, name: str, text: str, interpreter: str = "/bin/sh") -> None:
    """An executable script."""
    path = directory / name
    path.write_text(f"#!{interpreter}\n{text}")
    path.chmod(0o755)


def credential(key: bytes) -> str:
    """What the stand-in munged makes with a key."""
    return f"MUNGE:{hashlib.sha256(key).hexdigest()}:"


class MemoryHandlers:
    """A daemon's side that keeps everything in memory and behaves as the contract says."""

    __test__ = False

    def __init__(self, join_token: SecretStr, key: bytes = KEY) -> None:
        self.key = key
        self.munged_key = key
        self.tickets = {
            tokens.hash_token(join_token): JoinTicket(
                MACHINE, tokens.hash_token(join_token), datetime.now(UTC) + timedelta(hours=1)
            )
        }
        self.peers: dict[str, TailnetPeer] = {"127.0.0.1": TailnetPeer("n1", MACHINE, "100.64.0.7", True)}
        self.nodes: dict[str, NodeCaller] = {}
        self.refused: list[JoinRefused] = []
        self.node_tokens: list[SecretStr] = []
        self.queue = CommandQueue(redeliver_s=0.2)
        self.reports: list[PollIn] = []
        self.troubles: list[tuple[str, str]] = []
        self.results: list[tuple[Command, ResultIn]] = []
        self.facts: NodeFacts | None = None
        self.joins = 0
        self.gpus_rented = 1
        self.needs_answer = Needs(slurm_uid=0, slurm_gid=0, munge_uid=0, munge_gid=0)
        self.dead_man_s = 600.0
        self.roster = {"h100-1": "100.64.0.7", "h100-2": "100.64.0.8"}
        self.sections: dict[str, dict[str, Any]] = {}
        self.hold_s = 1.0
        self.failure: Exception | None = None
        self.others_devices: set[str] = set()

    async def whois(self, ip: str) -> TailnetPeer | None:
        if self.failure is not None:
            raise self.failure
        return self.peers.get(ip)

    async def machine_for_join(self, token_hash: str) -> JoinTicket | None:
        return self.tickets.get(token_hash)

    async def ticket_in_gang(self, ticket: JoinTicket, peer: TailnetPeer) -> JoinTicket:
        raise JoinRefused(f"{peer.hostname} has the join token of {ticket.gang}", "nothing here has a gang")

    async def check_device(self, machine: str, peer: TailnetPeer) -> None:
        if peer.id in self.others_devices:
            raise JoinRefused(f"{machine} shows the tailnet device of another", "make the image anew")

    async def join_refused(self, machine: str, peer: TailnetPeer, error: JoinRefused) -> None:
        self.refused.append(error)

    async def proved(self, caller: NodeCaller) -> None:
        self.tickets = {hashed: replace(ticket, closed=True) for hashed, ticket in self.tickets.items()}

    async def take_device(self, machine: str, peer: TailnetPeer) -> None:
        if peer.hostname != machine:
            raise JoinRefused(f"{peer.hostname} has the node token of {machine}", "make the image anew")
        self.nodes = {hashed: replace(caller, device_id=peer.id) for hashed, caller in self.nodes.items()}

    async def trouble(self, machine: str, stage: str, text: str) -> None:
        self.troubles.append((stage, text))

    async def needs(self, machine: str) -> Needs:
        return self.needs_answer

    async def join(self, machine: str, peer: TailnetPeer, facts: NodeFacts) -> JoinAnswer:
        for hashed, ticket in self.tickets.items():
            if ticket.machine == machine:
                self.tickets[hashed] = replace(ticket, bound_to=peer.id)
        return self._accept(machine, peer, facts, key_b64(self.key))

    async def rejoin(self, caller: NodeCaller, peer: TailnetPeer, facts: NodeFacts, munge_key: str) -> JoinAnswer:
        has_it = munge_key == hashlib.sha256(self.key).hexdigest()[:16]
        return self._accept(caller.machine, peer, facts, None if has_it else key_b64(self.key))

    def lose_journal(self) -> None:
        """The machine is found again; nothing is known of it."""
        self.nodes = {hashed: replace(caller, device_id="", known=False) for hashed, caller in self.nodes.items()}

    def _accept(self, machine: str, peer: TailnetPeer, facts: NodeFacts, key: SecretStr | None) -> JoinAnswer:
        check_facts(
            facts,
            gpus_rented=self.gpus_rented,
            gpu_model="h100-sxm",
            slurmctld_version="24.11.5",
            clock_skew_max_s=120.0,
        )
        token = self.node_tokens[0] if self.node_tokens else new_token()
        self.node_tokens.append(token)
        self.nodes = {tokens.hash_token(token): NodeCaller(machine, peer.id)}
        self.facts = facts
        self.joins += 1
        uid, gid = os.getuid(), os.getgid()
        return JoinAnswer(
            node_token=token, slot="h100-1", cluster="mesh", conf_server="100.64.0.1:6817",
            munge_key_b64=key, slurm_uid=uid, slurm_gid=gid, munge_uid=uid, munge_gid=gid,
            roster=self.roster, roster_version=1, poll_hold_s=self.hold_s, dead_man_s=self.dead_man_s,
            sections=self.sections,
        )  # fmt: skip

    async def machine_for_node(self, token_hash: str) -> NodeCaller | None:
        return self.nodes.get(token_hash)

    async def munge_exchange(self, machine: str, credential_: str) -> str:
        if credential_ != credential(self.munged_key):
            raise MungeError("the credential is invalid: the two sides do not have the same munge key")
        return credential(self.munged_key)

    async def poll(self, machine: str, report: PollIn, hold_s: float) -> Sequence[Command]:
        self.reports.append(report)
        self.results.extend(self.queue.settle(report.results))
        return await self.queue.take(hold_s)

    def expects_logs(self, machine: str) -> bool:
        return self.queue.expects_logs

    async def order(self, verb: Any, args: Mapping[str, Any] | None = None, timeout_s: float = WITHIN_S) -> ResultIn:
        """Put a command and wait for its result."""
        result = await self.queue.result(self.queue.put(verb, args), timeout_s)
        assert result is not None, f"no result for {verb}"
        return result


@dataclass
class Machine:
    """A scratch directory that stands for a machine's /, and the agent that runs in it."""

    root: Path
    port: int
    token: SecretStr
    python: str = sys.executable
    process: asyncio.subprocess.Process | None = None
    output: Path = field(init=False)
    extra: tuple[str, ...] = ()
    scanner: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        for name in ("bin", "etc/meshd-node", "dev", "run", "etc/ssh", "var/log"):
            (self.root / name).mkdir(parents=True)
        self.output = self.root / "agent.out"
        (self.root / "agent.pyz").write_bytes(agent_zipapp())
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (self.root / "etc/passwd").write_text(
            "munge:x:{0}:{1}::/:\nslurm:x:{0}:{1}::/:\n".format(os.getuid(), os.getgid())
        )
        (self.root / "etc/group").write_text("munge:x:{0}:\nslurm:x:{0}:\n".format(os.getgid()))
        (self.root / "etc/os-release").write_text('PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n')
        (self.root / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAAC3NzaC1 root@x\n")
        (self.root / "dev/nvidia0").write_text("")
        (self.root / "dev/nvidia0").chmod(0o600)
        (self.root / "dev/nvidiactl").write_text("")
        self._lay_out_services()
        bin_ = self.root / "bin"
        program(bin_, "munged", _MUNGED, sys.executable)
        program(bin_, "munge", _MUNGE, sys.executable)
        program(bin_, "unmunge", _UNMUNGE, sys.executable)
        program(bin_, "slurmd", _SLURMD)
        program(bin_, "nvidia-smi", (
            'case "$1" in *utilization*) echo "0, 37, 1024";; '
            '*) echo "0, GPU-00000000-0000-0000-0000-000000000001, NVIDIA H100 80GB HBM3, 81559";; esac\n'
        ))  # fmt: skip
        program(bin_, "tailscale", "echo 1.102.5\n")
        self.write_join(self.token.get_secret_value())

    def write_join(self, token: str, dead_man_s: float = 600.0) -> None:
        """What stage 1 leaves for the agent."""
        text = json.dumps({"heads": ["127.0.0.1"], "port": self.port, "token": token, "dead_man_s": dead_man_s})
        (self.root / "etc/meshd-node/join.json").write_text(text)

    def _lay_out_services(self) -> None:
        """The service directories of slurmd and munged: the scripts of a pod, below this root."""
        (self.root / "run/slurm").mkdir(parents=True)
        pod = self.root / "usr/lib/meshd/pod"
        pod.mkdir(parents=True)
        for name in ("entrypoint", "libmeshnet.so", "meshnetd", "libslurmconf.so"):
            (pod / name).touch()  # our own image has them all
        for name in ("munged", "slurmd"):
            shutil.copytree(POD / "service" / name, self.services / name)
            (self.services / name / "down").touch()
            run = self.services / name / "run"
            text = run.read_text().replace("/var/lib/meshd-node", f"{self.root}/var/lib/meshd-node")
            files = f"--key-file {self.root}/etc/munge/munge.key --socket {self.root}/run/munge/munge.socket.2"
            text = text.replace("s6-setuidgid munge munged --foreground", f"munged --foreground {files}")
            text = text.replace("/run/slurm", f"{self.root}/run/slurm")
            run.write_text(text)

    @property
    def services(self) -> Path:
        """s6's scan directory."""
        return self.root / "run/meshd-pod/service"

    def supervise(self) -> None:
        """Have s6 run the services, as in a pod."""
        if self.scanner is None:
            argv = ["s6-svscan", str(self.services)]
            self.scanner = subprocess.Popen(argv, env=self._environment(), stdin=subprocess.DEVNULL)

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "STANDIN_ROOT": str(self.root), "HOME": "/"}

    async def start(self, verb: str = "run") -> None:
        """Start the agent."""
        self.supervise()
        await until(lambda: all((self.services / name / "supervise/control").exists() for name in ("munged", "slurmd")))
        with self.output.open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                self.python, str(self.root / "agent.pyz"), "--root", str(self.root), "--refused-pause-s", "0.3",
                "--tun", "yes", *self.extra, verb, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                env=self._environment(),
            )  # fmt: skip

    async def stop(self) -> None:
        """End the agent as systemd would; slurmd and munged go on."""
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()

    def children(self) -> dict[str, int]:
        """Pids of slurmd and munged, as far as they run."""
        found = {}
        for name in ("slurmd", "munged"):
            argv = ["s6-svstat", "-o", "pid", str(self.services / name)]
            said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
            if said.isdigit():
                found[name] = int(said)
        return found

    def power_cut(self) -> None:
        """All daemons die and /run is empty, as after a reboot."""
        self._end_supervision()
        ours = str(self.root / "bin").encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            # By what runs, not by pid files: one that was started a moment ago has none yet.
            with suppress(OSError):
                if any(word.startswith(ours) for word in path.read_bytes().split(b"\0")):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        (self.root / "run/munge/munge.socket.2").unlink(missing_ok=True)

    def _end_supervision(self) -> None:
        if self.scanner is None:
            return
        stats = Path("/proc").glob("[0-9]*/stat")
        pids = [int(path.parent.name) for path in stats if _parent(path) == self.scanner.pid]
        self.scanner.kill()
        self.scanner.wait()
        self.scanner = None
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in ("munged", "slurmd"):
            shutil.rmtree(self.services / name / "supervise", ignore_errors=True)

    def slurmd_calls(self) -> list[str]:
        """How slurmd was started, each time."""
        path = self.root / "slurmd.calls"
        return path.read_text().splitlines() if path.exists() else []

    def text(self) -> str:
        """All that the agent printed."""
        return self.output.read_text() if self.output.exists() else ""

    def mode(self, path: str) -> int:
        """Permission bits of a file of the machine."""
        return stat.S_IMODE((self.root / path).stat().st_mode)


def _parent(stat: Path) -> int:
    """The parent's pid in a /proc/PID/stat; 0 when the process is gone."""
    with suppress(OSError):
        return int(stat.read_text().rpartition(")")[2].split()[1])
    return 0


async def until(condition: Callable[[], object], timeout_s: float = WITHIN_S) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - files and processes give no event
            await asyncio.sleep(0.02)


def new_token() -> SecretStr:
    """As long as the head's."""
    return SecretStr(secrets.token_hex(32))


@dataclass
class House:
    """Head and machine together."""

    handlers: MemoryHandlers
    api: NodeApi
    port: int
    machine: Machine


def b64(data: bytes) -> str:
    """Base64 as text."""
    return base64.b64encode(data).decode()
