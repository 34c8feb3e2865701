"""A small cluster of real daemons in a box that is asked all the time, and whose munge key changes."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.integration.slurm_lab import NETWORK, QUICK_START, START_S, Host, Lab, wait_until

ROOT = Path(__file__).resolve().parents[2]
NODES = ("m1", "m2")
OVER_BOTH = "srun -N2"
AHEAD_S = 0.3
"""From all changers' being ready to the moment. They only sleep until then."""

AFTERWARDS = 3
"""So many calls of each kind are looked at that began with one key everywhere."""

WATCH_S = 150.0
"""For those calls to come to their ends: an `srun` of Slurm 22.05 that nodes refuse takes its time to give up."""

PING_S = 15
"""slurmctld asks a node again that did not answer: after a third of SlurmdTimeout (100 s as meshd sets it)."""

SLURM_CONF = f"""
ClusterName=lab
SlurmctldHost=head({NETWORK}.1)
SlurmUser=slurm
AuthType=auth/munge
SlurmctldParameters=enable_configless
ReturnToService=2
TreeWidth=65533
SlurmdTimeout={PING_S * 3}
{QUICK_START}
KillWait=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
NodeName=m1 NodeAddr={NETWORK}.2 CPUs=32 RealMemory=500 State=UNKNOWN
NodeName=m2 NodeAddr={NETWORK}.3 CPUs=32 RealMemory=500 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""

STEPS = """#!/bin/sh
while :; do
    begun=$(date +%s.%N)
    srun --ntasks=1 --overlap true; code=$?
    echo "$code $begun $(date +%s.%N)" >>/tmp/steps
    sleep PAUSE
done
"""

# What meshd-munge.service and the node agent run, around a munged that no systemd keeps.
CHANGE = r"""
import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, "/tmp/code")
kind, name = sys.argv[1:]
if kind == "head":
    from meshd.munge import headkey
else:
    from meshd_node.munge import switch_key
    from meshd_node.paths import Paths
    from meshd_node.users import Account
print("ready", flush=True)
at, away_s = map(float, sys.stdin.readline().split())

def unit(verb):
    if verb == "start":
        drop = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
        subprocess.run([*drop, "munged", "--num-threads=2"], check=True)
        return
    pid = int(pathlib.Path("/run/munge/munged.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    while os.path.exists("/proc/%d" % pid):
        time.sleep(0.001)

if kind == "head":
    request = pathlib.Path("/tmp/meshd") / headkey.REQUEST
    request.parent.mkdir(exist_ok=True)
    with open(os.open(request, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump({"id": "1", "action": "switch", "fingerprint": name, "at_unix": at, "away_s": away_s}, file)
    answer = pathlib.Path("/tmp/answer.json")
    headkey.serve(request, answer, headkey.Munge(unit=unit))
    told = json.loads(answer.read_text())
    assert told["ok"], told["detail"]
    print(told["stopped_unix"], told["started_unix"])
else:
    class Munged:
        def stop(self): unit("stop")
        def start(self): unit("start")
        def alive(self): return True

    owner = os.stat("/etc/munge/munge.key")
    change = switch_key(Paths(), Munged(), Account("munge", owner.st_uid, owner.st_gid), name, at, away_s)
    print(change.stopped_unix, change.started_unix)
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One command: when it began and ended (seconds since the epoch), its exit code and what it complained of."""

    begun: float
    ended: float
    code: int
    error: str = ""


class Caller(threading.Thread):
    """Runs a command again and again on a host."""

    def __init__(self, host: Host, name: str, argv: list[str], pause_s: float) -> None:
        super().__init__(daemon=True, name=name)
        self.calls: list[Call] = []
        self.done = threading.Event()
        self._argv = host.argv(argv)
        self._pause_s = pause_s

    def run(self) -> None:
        """Until `done` is set."""
        while not self.done.wait(self._pause_s):
            begun = time.time()
            ended = subprocess.run(self._argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            self.calls.append(Call(begun, time.time(), ended.returncode, ended.stderr.strip()[-200:]))


@dataclass
class Seen:
    """What one change of the key did.

    Attributes:
        stopped: when the munged of each host stopped, as time.time() tells it.
        started: when each was back.
        calls: by kind, those that ended after the moment.
    """

    stopped: tuple[float, ...]
    started: tuple[float, ...]
    calls: dict[str, list[Call]] = field(default_factory=dict)

    @property
    def gone_at(self) -> float:
        """When the first munged stopped."""
        return min(self.stopped)

    @property
    def back_at(self) -> float:
        """When the last munged was back: there is one key everywhere since."""
        return max(self.started)

    @property
    def spread_s(self) -> float:
        """From the first munged that stopped to the last that came back."""
        return self.back_at - self.gone_at

    @property
    def two_keys_s(self) -> float:
        """For so long one munged had the new key already and another one the old key still."""
        return max(0.0, max(self.stopped) - min(self.started))

    @property
    def afterwards(self) -> dict[str, int]:
        """How many of the calls of each kind began with one key everywhere."""
        return {name: sum(call.begun > self.back_at for call in calls) for name, calls in self.calls.items()}

    @property
    def refused(self) -> dict[str, list[Call]]:
        """Those that failed."""
        return refused(self.calls)

    @property
    def count(self) -> int:
        """How many calls there were."""
        return sum(map(len, self.calls.values()))

    @property
    def longest_s(self) -> float:
        """The call that took longest."""
        return max((c.ended - c.begun for calls in self.calls.values() for c in calls), default=0.0)

    @property
    def refused_for_s(self) -> float:
        """From the first refused call's beginning to the last one's end."""
        bad = [c for calls in self.refused.values() for c in calls]
        return max(c.ended for c in bad) - min(c.begun for c in bad) if bad else 0.0


class BusyCluster:
    """slurmctld and two slurmds, a job of steps on each node, a job over both that only runs, and callers."""

    def __init__(self, lab: Lab, pause_s: float) -> None:
        self.lab = lab
        self.jobs: list[str] = []
        self._pause_s = pause_s
        self._callers: list[Caller] = []

    @property
    def head(self) -> Host:
        """The host with slurmctld."""
        return self.lab.hosts["head"]

    def start(self) -> None:
        """Hosts, daemons, jobs and callers."""
        self.lab.start(["head", *NODES])
        (self.head.conf_dir / "slurm.conf").write_text(SLURM_CONF)
        self.head.without_cgroups()
        self.head.start_slurmctld()
        for name in NODES:
            self.lab.hosts[name].start_slurmd("--conf-server", f"{NETWORK}.1:6817", "-N", name)
        wait_until(lambda: self.states() == {"idle"}, "both nodes idle")
        put(self.head, "/tmp/steps.sh", STEPS.replace("PAUSE", str(self._pause_s)).encode())
        for name in NODES:
            self._submit("-w", name, "-n2", "/tmp/steps.sh")
        self._submit("-N2", "-n2", "--wrap", "srun --overlap sleep 3600")
        wait_until(lambda: set(self.job_states().values()) == {"RUNNING"}, "the jobs run", START_S)
        for host in self.lab.hosts.values():
            self._put_code(host)
        for name, argv, where in (
            (OVER_BOTH, ["srun", "-N2", "-n2", "true"], self.head),
            ("sbatch", ["sbatch", "-o", "/dev/null", "--wrap", "true"], self.head),
            ("sinfo", ["sinfo", "-h"], self.head),
            ("squeue on a node", ["squeue", "-h"], self.lab.hosts["m1"]),
        ):
            self._callers.append(Caller(where, name, argv, self._pause_s))
            self._callers[-1].start()
        wait_until(
            lambda: all(any(call.code == 0 for call in calls) for calls in self._calls(0.0).values()),
            "a call of each kind does well",
        )

    def stop(self) -> None:
        """End everything, and with the hosts the calls that are under way."""
        for caller in self._callers:
            caller.done.set()
        self.lab.close()
        for caller in self._callers:
            caller.join(30)

    def change_key(
        self, late_s: Mapping[str, float], away_s: float, *, until_refused: bool = False, but: str = ""
    ) -> Seen:
        """Stage a new key everywhere, switch at one moment plus each host's lateness, and watch the calls.

        Args:
            late_s: by host, seconds after the moment.
            away_s: how long munged stays away.
            until_refused: who is late does not switch before a call was refused, however long that takes.
            but: the kind of calls that is not waited for afterwards.
        """
        key = secrets.token_bytes(1024)
        with ExitStack() as stack:
            hosts = self.lab.hosts.values()
            changers = [(host.name, stack.enter_context(self._changer(host, key))) for host in hosts]
            for _, changer in changers:
                assert changer.stdout
                assert changer.stdout.readline() == "ready\n"
            moment = time.time() + AHEAD_S
            for name, changer in changers:
                if until_refused and name in late_s:
                    wait_until(lambda: bool(refused(self._calls(moment))), "Slurm refuses a call with two keys about")
                assert changer.stdin
                changer.stdin.write(f"{moment + late_s.get(name, 0.0)} {away_s}\n")
                changer.stdin.flush()
            outputs = [changer.communicate(timeout=60)[0] for _, changer in changers]
        assert all(changer.returncode == 0 for _, changer in changers), outputs
        stopped, started = zip(*(map(float, output.split()) for output in outputs), strict=True)
        seen = Seen(stopped, started)
        end = time.monotonic() + WATCH_S
        while min((count for name, count in seen.afterwards.items() if name != but), default=0) < AFTERWARDS:
            assert time.monotonic() < end, f"calls that began with one key everywhere: {seen.afterwards}"
            time.sleep(0.05)
            seen.calls = self._calls(moment)
        return seen

    def states(self) -> set[str]:
        """Of the nodes, as sinfo tells them."""
        return set(self.head.call("sinfo", "-h", "-N", "-o", "%T", check=False).split())

    def job_states(self) -> dict[str, str]:
        """State of each of the long jobs, with how often it was restarted when it was."""
        found = {}
        for job in self.jobs:
            text = self.head.call("scontrol", "show", "job", job, check=False)
            words = dict(word.split("=", 1) for word in text.split() if "=" in word)
            restarts = words.get("Restarts", "0")
            found[job] = words.get("JobState", "GONE") + ("" if restarts == "0" else f" restarted {restarts}")
        return found

    def _calls(self, since: float) -> dict[str, list[Call]]:
        """By kind, the calls that ended since then."""
        found = {caller.name: list(caller.calls) for caller in self._callers}
        for node in NODES:
            lines = (line.split() for line in self.lab.hosts[node].call("cat", "/tmp/steps", check=False).splitlines())
            found[f"steps on {node}"] = [Call(float(begun), float(ended), int(code)) for code, begun, ended in lines]
        return {name: [call for call in calls if call.ended > since] for name, calls in found.items()}

    def _changer(self, host: Host, key: bytes) -> subprocess.Popen[str]:
        """A process on a host where the key is staged: once it says that it is ready it takes the moment."""
        put(host, "/etc/munge/munge.key.staged", key, owner="munge:munge", mode="400")
        name = sha256(key).hexdigest()[:16]
        argv = ["python3", "/tmp/change.py", "head" if host is self.head else "node", name]
        return subprocess.Popen(host.argv(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _submit(self, *words: str) -> None:
        self.jobs.append(self.head.call("sbatch", "--parsable", "-o", "/dev/null", *words).strip())

    def _put_code(self, host: Host) -> None:
        put(host, "/tmp/change.py", CHANGE.encode())
        for name in ("munge/headkey.py", "runtime/request.py"):
            put(host, f"/tmp/code/meshd/{name}", (ROOT / "meshd" / name).read_bytes())
        for file in (ROOT / "deploy/node/meshd_node").glob("*.py"):
            put(host, f"/tmp/code/meshd_node/{file.name}", file.read_bytes())


@contextmanager
def busy_cluster(lab: Lab, pause_s: float) -> Iterator[BusyCluster]:
    """The cluster at work."""
    cluster = BusyCluster(lab, pause_s)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def refused(calls: Mapping[str, list[Call]]) -> dict[str, list[Call]]:
    """By kind, the calls that failed."""
    return {name: bad for name, of_kind in calls.items() if (bad := [call for call in of_kind if call.code])}


def put(host: Host, path: str, data: bytes, *, owner: str = "root:root", mode: str = "644") -> None:
    """A file onto a host."""
    script = f'umask 077; mkdir -p "$(dirname {path})"; cat >{path}; chown {owner} {path}; chmod {mode} {path}'
    subprocess.run(host.argv(["sh", "-ec", script]), input=data, check=True, timeout=30)


def described(seen: Seen) -> str:
    """For people."""
    bad = {name: len(calls) for name, calls in seen.refused.items()}
    return (
        f"munged gone and back everywhere within {seen.spread_s * 1000:.0f} ms; {sum(bad.values())} of {seen.count} "
        f"calls refused {json.dumps(bad)} over {seen.refused_for_s:.2f} s; the longest call took {seen.longest_s:.2f} s"
    )
