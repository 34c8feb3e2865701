"""All that jobs do on a VM they do on pods, which have no TUN device and no systemd: on two pods and a VM together."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import USER, WAIT_FOR_WORD
from tests.e2e.mlflow import mlflow
from tests.e2e.pods import HOME, POD_CLOUD, PROGRAMS, VM_CLOUD, Fleet
from tests.e2e.recipes import Person
from tests.e2e.terminal import terminal

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

IMAGE = "trixie-torch"
MEGABYTE = bytes(range(256)) * 4096
NET_ADMIN = 1 << 12
STEPS, AT_ONCE = 500, 4

EITHER = f"--constraint={POD_CLOUD}|{VM_CLOUD}"
"""What `--batch`, which chooses the first node, must be a part of."""

DAEMONS = ("slurmd", "slurmstepd", "meshnetd", "tailscaled", "munged")
COUNT = (
    'for name in {names}; do for pid in $(pgrep -x "$name.*"); do echo $name $(ls /proc/$pid/fd | wc -l); done; done'
)
"""Prints a line for each daemon's process: its name, and how many files it has open."""

SPARE_FILES = 20
"""What a daemon may have open for a moment, e.g. for a message that is under way."""

SCRIPT = """\
set -eu
echo first $SLURMD_NODENAME
for slot in {slots}; do srun -N1 -n1 -w $slot --overlap --gpus=0 sh -c 'echo alone $SLURMD_NODENAME'; done
srun -N3 --gpus=0 sh -c 'echo together $SLURMD_NODENAME'
head -c 3000000 /dev/urandom >/tmp/file-$SLURM_JOB_ID
sbcast /tmp/file-$SLURM_JOB_ID /tmp/copy-$SLURM_JOB_ID
srun -N3 --gpus=0 sha256sum /tmp/copy-$SLURM_JOB_ID | cut -d' ' -f1 | sort -u | wc -l
scontrol show node $SLURMD_NODENAME | grep -c NodeAddr=100
squeue -h -j $SLURM_JOB_ID -o %T
"""
"""A batch script whose first node is any of the fleet."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def short_job(fleet: Fleet) -> AsyncIterator[tuple[str, str]]:
    """A job on a pod whose time is over within half a minute, when slurmctld next looks; its slot and id."""
    slot = fleet.pods[1]
    job = await fleet.lab.sbatch("sleep 600", "--gpus=0", "-w", slot, "--time=1")
    await fleet.lab.running(job)
    await fleet.lab.head.run("scontrol", "update", f"JobId={job}", "EndTime=now")
    yield slot, job
    await fleet.lab.head.run("scancel", job, check=False)


async def test_a_pod_is_a_node(fleet: Fleet, short_job: tuple[str, str]) -> None:
    lab = fleet.lab
    slots, features = await lab.slots(), await lab.features()
    for slot in fleet.slots:
        assert slots[slot].address.startswith("100.")
        assert ("pod" in features[slot]) == (slot in fleet.pods)
    for slot in fleet.pods:
        assert await fleet.sh(slot, "cat /proc/1/comm") == "s6-svscan"
        assert await fleet.sh(slot, "ls -d /dev/net/tun /run/systemd/system 2>/dev/null; true") == ""
        capabilities = re.search(r"CapEff:\s*(\w+)", await fleet.sh(slot, "cat /proc/1/status"))
        assert capabilities and not int(capabilities[1], 16) & NET_ADMIN
    assert await lab.problems() == ""
    rows = await lab.by_slot()
    assert all(row["phase"] == "ready" and not row["unfit"] for row in rows.values())


async def test_input_output_and_exit_codes(fleet: Fleet) -> None:
    lab, digest = fleet.lab, hashlib.sha256(MEGABYTE).hexdigest()
    for slot in fleet.slots:
        result = await lab.step("-w", slot, "sh", "-c", "echo said >&2; cat; exit 7", stdin=MEGABYTE)
        assert (result.returncode, hashlib.sha256(result.stdout).hexdigest()) == (7, digest), slot
        assert result.stderr.startswith(b"said\n")
    said = await lab.srun("-N3", "--label", "sh", "-c", "sha256sum; hostname", stdin=MEGABYTE)
    lines = dict(re.findall(r"^(\d): (\w{64})", said, re.MULTILINE))
    assert lines == dict.fromkeys("012", digest)
    assert sorted(re.findall(r"^\d: (\S+)$", said, re.MULTILINE)) == sorted(fleet.slots)


async def test_batch_scripts_run_steps_everywhere(fleet: Fleet) -> None:
    """Also on their own node; the first node is a pod, and the VM."""
    lab = fleet.lab
    script = SCRIPT.format(slots=" ".join(fleet.slots))
    for first in (fleet.pods[0], fleet.vm):
        (feature,) = (await lab.features())[first] & {POD_CLOUD, VM_CLOUD}
        job = await lab.sbatch(script, "-N3", "--gpus=3", EITHER, f"--batch={feature}")
        node = (await fleet.finished(job))["BatchHost"]
        lines = (await fleet.output(node, job)).splitlines()
        assert node == first or node in fleet.pods
        assert lines[0] == f"first {node}"
        assert [f"alone {slot}" for slot in fleet.slots] == lines[1:4]
        assert sorted(lines[4:7]) == sorted(f"together {slot}" for slot in fleet.slots)
        assert lines[7:] == ["1", "1", "RUNNING"]


async def test_steps_over_pods_alone(fleet: Fleet) -> None:
    said = await fleet.lab.srun("-N2", "-n4", "--overcommit", "-w", ",".join(fleet.pods), "printenv", "SLURMD_NODENAME")
    assert sorted(said.split()) == sorted(2 * fleet.pods)


async def test_a_step_outlives_a_reconfigure(fleet: Fleet) -> None:
    lab = fleet.lab
    word = f"/tmp/go-{time.monotonic_ns()}"
    # slurmd keeps its process and writes what it got from slurmctld again.
    written = "stat -c %.Y /run/slurm/conf/slurm.conf"
    before = await fleet.on_all(written)
    script = f"echo begun; until [ -e {word} ]; do sleep 0.1; done; head -c 100000 /dev/zero | tr '\\0' x"
    step = asyncio.create_task(lab.srun("-N3", "sh", "-c", script))
    await fleet.run_everywhere("slurmstepd")
    await lab.head.run("scontrol", "reconfigure")

    async def again() -> bool:
        return not (await fleet.on_all(written)).items() & before.items()

    await lab.until(again, "slurmd has read the configuration again on all nodes")
    said = await lab.srun("-w", fleet.all_nodes, "printenv", "SLURMD_NODENAME")
    assert len(set(said.split())) == 3
    await fleet.on_all(f"touch {word}")
    assert (await step).count("x") == 300000


async def test_a_job_is_cancelled(fleet: Fleet) -> None:
    lab = fleet.lab
    began = time.monotonic()
    job = await lab.sbatch("srun -N3 --gpus=0 sleep 4321", "-N3", "--gpus=3")
    await fleet.run_everywhere("sleep")
    await lab.head.run("scancel", job)

    async def gone() -> bool:
        left = await fleet.on_all("pgrep -f '^sleep 4321' || true")
        return (await lab.job(job))["JobState"] == "CANCELLED" and not any(left.values())

    await lab.until(gone, "it and its processes are gone")
    assert time.monotonic() - began < 60


async def test_a_terminal(fleet: Fleet) -> None:
    slot = fleet.pods[0]
    argv = ("runuser", "-u", USER, "--", "srun", "--chdir=/tmp", "-w", slot, "--pty", "sh", "-i")
    command = await fleet.lab.cluster.world.hypervisor.command("head", argv)

    async def sleeps() -> bool:
        return await fleet.sh(slot, "pgrep -f '^sleep 1000' || true") != ""

    async with terminal(command, rows=30, columns=100) as shown:
        await shown.see("$ ")
        shown.type("stty size; echo on-$SLURMD_NODENAME\r")
        await shown.see("30 100")
        await shown.see(f"on-{slot}")
        shown.resize(41, 123)
        await shown.see("$ ")
        shown.type("trap 'echo changed' WINCH; while ! stty size | grep '41 123'; do sleep 0.1; done\r")
        await shown.see("\n41 123")
        await shown.see("$ ")
        shown.type("sleep 1000\r")
        await fleet.lab.until(sleeps, "the shell runs a program")
        shown.type("\x03")
        await shown.see("$ ")
        shown.type("exit 5\r")
        assert await shown.ended() == 5


@pytest.mark.parametrize("program", ["pmix.py", "mpi.py"])
async def test_pmix(fleet: Fleet, program: str, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    said = await fleet.program(program, srun=("--mpi=pmix",))
    assert len(re.findall(r"^rank \d of 3 on \S+: ok", said, re.MULTILINE)) == 3, said
    figure(f"{program} over two pods and a VM: {time.monotonic() - began:.2f} s")


async def test_training(fleet: Fleet, figure: Callable[[str], None]) -> None:
    """With DistributedDataParallel and FullyShardedDataParallel by srun, then by torchrun; a pod hosts the store."""
    pod = fleet.pods[0]
    by_torchrun = (
        "--nnodes=3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint={pod}:29400",
        "/tmp/ddp.py",
    )  # fmt: skip
    for program, words in (("ddp.py", ("ddp", "fsdp")), ("torchrun.py", by_torchrun)):
        began = time.monotonic()
        said = await fleet.program(program, *words, srun=(f"--export=ALL,MASTER_ADDR={pod}",))
        ways = re.findall(r"^(\w+): rank \d of 3 on \S+: ok, parameters equal", said, re.MULTILINE)
        assert sorted(ways) == (["ddp"] * 3 + ["fsdp"] * 3 if program == "ddp.py" else ["ddp"] * 3), said
        figure(f"{program}: {time.monotonic() - began:.1f} s; {said.splitlines()[0]}")


async def test_meshctl_test_finds_pods_and_vm_together_well(fleet: Fleet, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    ran = await fleet.lab.meshctl("test", "h100", "--pairs", "--mib", "4", "-o", "json", user=USER, timeout_s=180)
    assert ran.returncode == 0, ran.stderr
    view = json.loads(ran.stdout)
    assert {(node["node"], node["verdict"], node["device"]) for node in view["nodes"]} == {
        (slot, "ok", "cpu") for slot in fleet.slots
    }
    assert [len(group["nodes"]) for group in view["groups"]] == [3, 2, 2, 2]
    assert all(group["right"] and group["gb_per_s"] > 0 and group["latency_us"] > 0 for group in view["groups"])
    figure(f"{time.monotonic() - began:.1f} s; all: {view['groups'][0]['gb_per_s']:.3f} GB/s")


LOGS_TO_MLFLOW = """\
import os, sys
sys.path.insert(0, "/tmp/lib")
import mlflow
mlflow.set_experiment("pods")
with mlflow.start_run(run_name=os.environ["SLURMD_NODENAME"]):
    mlflow.log_metric("rank", int(os.environ["SLURM_PROCID"]), step=1)
    mlflow.log_text("well", "note.txt")
"""


SENDS_PACKAGES = """\
set -e
sbcast lib.tar /tmp/lib.tar
srun --chdir=/tmp sh -c 'mkdir lib && tar -xf lib.tar -C lib'
srun --chdir=/tmp python3 -c "$(cat log.py)"
"""


async def test_a_job_logs_to_mlflow_on_the_head(fleet: Fleet, figure: Callable[[str], None]) -> None:
    """As docs/services.md says; pods have no share, so the client's packages are sent to the nodes."""
    lab, person = fleet.lab, Person(fleet.lab, USER)
    async with mlflow(lab) as server:
        await person.type("python3 -m venv ~/env && ~/env/bin/pip install --quiet --target ~/lib mlflow-skinny")
        await person.type("tar -cf ~/lib.tar -C ~/lib .")
        assert (await server.call("/api/2.0/mlflow/experiments/create", '{"name": "pods"}'))[0] == 200
        await lab.head.write(f"{HOME}/log.py", LOGS_TO_MLFLOW)
        began = time.monotonic()

        async def known() -> bool:
            said = await lab.step("-N3", "printenv", "MLFLOW_TRACKING_URI")
            return said.text.split() == [server.uri] * 3

        await lab.until(known, "every job knows of it")
        await lab.head.write(f"{HOME}/send.sh", SENDS_PACKAGES)
        await person.type("salloc -N3 sh send.sh")
        runs = {run["info"]["run_name"]: run for run in await server.runs("pods")}
        assert runs.keys() == set(fleet.slots)
        assert {run["info"]["status"] for run in runs.values()} == {"FINISHED"}
        assert sorted(run["data"]["metrics"][0]["value"] for run in runs.values()) == [0, 1, 2]
        files = await lab.head.shell("cat /srv/data/mlflow/*/*/artifacts/note.txt")
        assert files.count("well") == 3
        figure(f"three nodes logged in {time.monotonic() - began:.1f} s")


async def daemons(fleet: Fleet) -> dict[tuple[str, str], list[int]]:
    """The open files of each process of the daemons, by node and name."""
    found: dict[tuple[str, str], list[int]] = {}
    for slot, text in (await fleet.on_all(COUNT.format(names=" ".join(DAEMONS)))).items():
        for name, files in (line.split() for line in text.splitlines()):
            found.setdefault((slot, name), []).append(int(files))
    return found


async def test_many_short_steps_leave_nothing(fleet: Fleet, figure: Callable[[str], None]) -> None:
    lab = fleet.lab
    before = await daemons(fleet)
    assert {(slot, name) for slot in fleet.pods for name in DAEMONS if name != "slurmstepd"} <= set(before)
    began = time.monotonic()
    one = "srun -N1 -n1 --overlap --gpus=0 sh -c 'echo x'"
    job = await lab.sbatch(
        f"seq {STEPS} | xargs -P {AT_ONCE} -I% {one} | wc -l",
        "-N3",
        "--gpus=0",
        EITHER,
        f"--batch={POD_CLOUD}",
    )
    first = (await fleet.finished(job))["BatchHost"]
    figure(f"{STEPS} steps, {AT_ONCE} at a time: {time.monotonic() - began:.1f} s")
    assert await fleet.output(first, job) == str(STEPS)

    async def as_before() -> bool:
        now = await daemons(fleet)
        return now.keys() == before.keys() and all(
            len(files) == len(before[key]) and sum(files) <= sum(before[key]) + SPARE_FILES
            for key, files in now.items()
        )

    await lab.until(as_before, f"no more processes and open files than before: {before}")


async def test_what_a_user_can_read(fleet: Fleet) -> None:
    """On a pod all that stage 1 got is in its arguments and its environment."""
    lab = fleet.lab
    for slot in fleet.slots:
        paths = "/etc/meshd-node/tailscale.key /etc/meshd-node/node.token"
        secrets = (await fleet.sh(slot, f"cat {paths}")).split()
        assert len(secrets) == 2
        if slot in fleet.pods:
            environment = (await fleet.sh(slot, "tr '\\0' '\\n' </proc/1/environ; env")).splitlines()
            secrets += [line.partition("=")[2] for line in environment if re.match(r"\w*(KEY|TOKEN|SECRET)\w*=.", line)]
            assert any(line.startswith("RUNPOD_API_KEY=") for line in environment), "the cloud gives it to each pod"
        user_data = next(m.user_data for m in lab.all_alive() if m.token == fleet.machines[slot])
        secrets += re.findall(r'"token":"([^"]+)"', user_data)
        script = (PROGRAMS / "secrets.py").read_text("utf-8")
        shown = await lab.srun("-w", slot, "python3", "-c", script, stdin="\n".join(secrets).encode())
        assert shown == "", f"{slot}: a user reads secrets in {shown}"
        denied = await lab.step("-w", slot, "cat", "/etc/munge/munge.key", "/proc/1/environ", "/etc/shadow")
        assert denied.returncode != 0 and denied.stdout == b""
        mine = await lab.srun("-w", slot, "env")
        assert not [secret for secret in secrets if secret in mine]
        assert not re.search(r"^(RUNPOD_\w+|MESHD_\w+)=", mine, re.MULTILINE), mine


async def test_the_time_of_a_job_is_over(fleet: Fleet, short_job: tuple[str, str]) -> None:
    slot, job = short_job

    async def over() -> bool:
        return (await fleet.lab.job(job))["JobState"] == "TIMEOUT"

    await fleet.lab.until(over, "slurmctld ends it")

    async def gone() -> bool:
        return await fleet.sh(slot, "pgrep -f '^sleep 600' || true") == ""

    await fleet.lab.until(gone, "its processes are gone")


async def test_nothing_of_all_this_troubled_a_node(fleet: Fleet) -> None:
    troubles = {"unfit", "slurmd_restarted", "failure", "drained"}
    told = [event for event in await fleet.lab.events(0) if event["machine"] in fleet.machines.values()]
    found = [event["text"] for event in told if event["kind"] in troubles]
    # Nodes are UNKNOWN for a moment after `scontrol reconfigure`, until slurmctld has asked them.
    assert [text for text in found if not text.endswith(" UNKNOWN")] == []


async def test_a_drained_pod_takes_no_jobs(fleet: Fleet) -> None:
    lab, slot = fleet.lab, fleet.pods[0]
    job = await lab.sbatch(WAIT_FOR_WORD, "-w", slot)
    await lab.running(job)
    assert (await lab.meshctl("drain", slot, "--reason", "mine")).returncode == 0
    late = await lab.sbatch("true", "-w", slot, "--gpus=0")

    async def draining() -> bool:
        return "DRAIN" in (await lab.slots())[slot].states

    await lab.until(draining, "it drains")
    assert (await lab.job(late))["JobState"] == "PENDING"
    await fleet.end(slot, job)
    assert (await lab.job(late))["JobState"] == "PENDING"
    assert (await lab.meshctl("undrain", slot)).returncode == 0
    await lab.completed(late)


async def test_a_pod_with_a_job_is_given_back_after_it(fleet: Fleet) -> None:
    """The last test: the fleet is gone after it."""
    lab, slot = fleet.lab, fleet.pods[0]
    job = await lab.sbatch(f"{WAIT_FOR_WORD}; until [ -e /tmp/read-$SLURM_JOB_ID ]; do sleep 0.1; done", "-w", slot)
    await lab.running(job)
    await lab.want(0, "--spread")

    async def alone() -> bool:
        return {machine.token for machine in lab.all_alive()} == {fleet.machines[slot]}

    await lab.until(alone, "the machines without jobs are gone")
    assert (await lab.job(job))["JobState"] == "RUNNING"
    await fleet.sh(slot, f"touch /tmp/end-{job}")

    async def worked_on() -> bool:
        return (await fleet.output(slot, job)).endswith("done")

    await lab.until(worked_on, "the job went on with its work")
    await fleet.sh(slot, f"touch /tmp/read-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    await lab.nothing_left()
