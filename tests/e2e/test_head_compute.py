"""The head as a node of its own cluster: alone, and in one job with a rented machine. Nobody but people drains it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from deploy.sandbox import proc
from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.tailnet import CONTROL_URL
from tests import documents
from tests.e2e.lab import AT_ONCE, QUICK, SLURM, USER, WAIT_FOR_WORD, Lab
from tests.e2e.pages import block_of
from tests.e2e.recipes import EDITS, Person, instead

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/integration/test_head_compute.py has the same with real Slurm in each run
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

PAGE = "docs/workstation.md"
CONF = "/etc/slurm/slurm.conf"
LOGGED_IN = f"--login-server={CONTROL_URL} --hostname=head --accept-dns=false --operator=slurm"
"""The head is on the tailnet, and says so again."""
FILES = "cat /etc/slurm/slurm.conf /etc/slurm/gres.conf; systemctl is-enabled slurmd; ls /etc/meshd-node"


async def init(lab: Lab, *words: str) -> proc.Result:
    return await lab.meshctl("init", "--yes", *words, "-o", "json", timeout_s=120)


async def head_check(lab: Lab) -> tuple[str, str]:
    row = (await lab.checks())["head node"]
    return row["status"], row["code"]


@pytest_asyncio.fixture(loop_scope="session")
async def computing(lab: Lab) -> AsyncIterator[Lab]:
    """The lab with a head that computes; afterwards it does not, and is as before.

    The sandbox's head has no GPUs, and an nvidia-smi that says so. Only Slurm's backfill scheduler starts heterogeneous
    jobs, by default every 30 s.
    """
    await lab.head.run("sed", "-i", "s/bf_interval=5/bf_interval=2/", CONF)
    before = await lab.head.shell(FILES, check=False)
    assert await head_check(lab) == ("ok", "")
    refused = await init(lab, "--compute")
    assert (refused.returncode, json.loads(refused.stdout)["kind"]) == (1, "head_hardware")
    from_zero, *_ = documents.share(__file__, "docs/workstation.md")
    settings = (await lab.head.run("cat", "/etc/meshd/meshd.toml")).stdout.decode()
    await lab.head.write(EDITS, f"\n{block_of(PAGE, 'toml')}gpus = []\n")
    words = {"tailscale up": f"tailscale up {LOGGED_IN}", "head/install": "head/install --offline"}

    async def first(command: str) -> None:
        if command.startswith("meshctl doctor"):
            await lab.until(lambda: is_up(lab), "the head is a node")

    await Person(lab, "root").block(from_zero, instead=instead(words), first=first)
    again = await lab.meshctl("init", "--dry-run", "-o", "json")
    assert json.loads(again.stdout)["changes"] == []
    yield lab
    await lab.head.run("scancel", "-u", USER)

    async def taken_back() -> bool:
        return (await init(lab, "--no-compute")).returncode == 0

    await lab.until(taken_back, "no job is on the head, and it is no node")
    await lab.head.run("systemctl", "restart", "slurmctld")
    assert await lab.head.shell(FILES, check=False) == before
    assert (await lab.head.run("systemctl", "is-active", "slurmd", check=False)).text == "inactive"

    # What --uninstall runs does the same.
    assert (await init(lab, "--compute")).returncode == 0
    assert await lab.head.shell(FILES, check=False) != before
    await lab.head.run("/opt/meshd/venv/bin/python", "-I", "-m", "meshd.slurm.init.compute_setup", "--remove")
    assert await lab.head.shell(FILES, check=False) == before
    assert await lab.write_settings(settings) == 0
    await lab.head.run("sed", "-i", "s/bf_interval=2/bf_interval=5/", CONF)
    await lab.head.run("scontrol", "reconfigure")


async def is_up(lab: Lab) -> bool:
    """Whether the head is a node, and all is well."""
    view = await lab.get("nodes")
    up = bool(view and view["head"] and view["head"]["up"])
    return up and (await lab.meshctl("doctor")).returncode == 0


async def on_head(lab: Lab, script: str, *options: str) -> str:
    """Submit a job to the head; its id."""
    argv = ["runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/tmp", "-p", "head", *options]
    return (await lab.head.run(*argv, stdin=f"#!/bin/sh\n{script}\n".encode())).text


async def row(lab: Lab) -> Any:
    return (await lab.status())["head"]


async def test_the_head_computes_and_only_people_drain_it(computing: Lab, figure: Callable[[str], None]) -> None:
    lab = computing
    began = time.monotonic()
    assert await lab.srun("-p", "head", "-n1", "sh", "-c", "echo $(hostname) $GLOO_SOCKET_IFNAME") == "head tailscale0"
    figure(f"a job on the head alone took {time.monotonic() - began:.1f} s")
    assert (await row(lab))["gpus"] == 0

    # A job of the head stays over all that follows.
    stays = await on_head(lab, WAIT_FOR_WORD)
    assert await lab.running(stays) == "head"

    async def seen() -> bool:
        return bool((await row(lab))["jobs"] == [stays])

    await lab.until(seen, "status shows the job of the head")
    refused = await init(lab, "--no-compute")
    assert (refused.returncode, '"kind": "head_busy"' in refused.text) == (1, True), refused.text
    await lab.head.run("scancel", stays)

    # One job over the head and a machine that is rented for it: steps of the head and of the machine, and their output.
    began = time.monotonic()
    both = await lab.srun("-p", "head", "-n1", "hostname", ":", "-p", "h100", "-n1", "--gpus=1", "hostname")
    figure(f"a job over the head and a machine that was rented for it took {time.monotonic() - began:.1f} s")
    (slot,) = await lab.by_slot()
    (machine,) = await lab.nodes()
    rented = await lab.inside(machine, "hostname")
    assert sorted(both.split()) == sorted(["head", rented])
    away = await lab.sbatch(
        "srun --het-group=0,1 hostname; until [ -e /tmp/read-$SLURM_JOB_ID ]; do sleep 0.2; done",
        "-p", "h100", "-n1", ":", "-p", "head", "-n1",
    )  # fmt: skip

    async def written() -> list[str] | None:
        told = sorted((await lab.inside(machine, "cat", f"/tmp/slurm-{away}.out", check=False)).split())
        return told if len(told) == 2 else None

    assert await lab.until(written, "both have written where the batch script runs") == sorted(["head", rented])
    await lab.inside(machine, "touch", f"/tmp/read-{away}")
    await lab.completed(away)
    assert (await lab.inside(machine, "getent", "hosts", "head")).split()[0] == lab.head.tailnet_ip
    assert (await lab.head.run("getent", "hosts", slot)).text.split()[0] == (await lab.nodes())[machine]["address"]

    # Another munge key, a restart of slurmctld and one of meshd end no job of the head.
    stays = await on_head(lab, WAIT_FOR_WORD)
    await lab.running(stays)
    assert (await lab.ask("rotate-key", "--munge", "--yes", timeout_s=120))["stage"] == "done"
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.restart_meshd()
    assert (await lab.job(stays))["JobState"] == "RUNNING"
    await lab.head.run("touch", f"/tmp/end-{stays}")
    await lab.completed(stays)
    assert (await lab.head.run("cat", f"/tmp/slurm-{stays}.out")).text == "done"

    # The machine goes; the head stays. Drained by a person it stays drained, over restarts of both.
    await lab.have(0)
    *_, drains = documents.share(__file__, "docs/workstation.md")
    jobs = []

    async def first(command: str) -> None:
        if "state=resume" in command:
            jobs.append(await stays_drained(lab))

    await Person(lab, "root").block(drains, instead=instead({"tower": "head"}), first=first)
    (waits,) = jobs
    await lab.completed(waits)
    assert (await lab.head.run("cat", f"/tmp/slurm-{waits}.out")).text == "head"
    assert not await lab.nodes()


async def stays_drained(lab: Lab) -> str:
    """The head is drained by a person, over restarts of slurmctld and of meshd; a job that waits for it."""
    waits = await on_head(lab, "hostname")
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.restart_meshd()

    async def shown() -> bool:
        head = await row(lab)
        return bool(head and head["drained"] and head["slurm_reason"] == "a game" and head["queue"]["pending"] == 1)

    await lab.until(shown, "status shows who drained it, and the job that waits")
    assert await head_check(lab) == ("ok", "")
    assert (await lab.slots())["head"].states == {"IDLE", "DRAIN"}
    assert (await lab.job(waits))["JobState"] == "PENDING"
    return waits


async def test_jobs_on_the_gpu_of_the_head_and_beside_it(figure: Callable[[str], None]) -> None:
    """As the page says, on a head that has one. The rented machine boots for the last of them."""
    _, jobs, _ = documents.share(__file__, "docs/workstation.md")
    options = ClusterOptions(
        sandbox_id=f"hc{os.getpid() % 100000}", timing=QUICK, key_mode="reusable", boot_s=0.2, end_s=0.2,
        slurm=SLURM.replace("bf_interval=5", "bf_interval=2"), slurm_settings=AT_ONCE, head_gpus=1,
    )  # fmt: skip
    async with Cluster(options) as cluster:
        lab, head = Lab(cluster), await cluster.bring_up_head()
        await head.run("useradd", "--create-home", USER)
        await head.shell("chmod 666 /dev/nvidia*")
        async with lab.also(block_of(PAGE, "toml")):
            done = await init(lab)
            assert done.returncode == 0, done.stderr.decode()
            await head.run("systemctl", "restart", "munge", "slurmctld", "slurmd", timeout_s=60)
            await lab.until(lambda: is_up(lab), "the head is a node")
            await head.write(f"/home/{USER}/train.sh", "#!/bin/sh\nhostname; nvidia-smi -L\n", "0755")
            words = {"a100": "h100", "./a": "hostname", "./b": "hostname"}
            began = time.monotonic()
            ran = await Person(lab, USER).block(jobs, instead=instead(words))
            figure(f"{len(ran)} commands in {time.monotonic() - began:.1f} s")
            shown, alone, batch, both = (one.output for one in ran)
            assert "gpu:h100-sxm:1" in shown and alone.count("GPU 0: ") == 1
            (number,) = re.findall(r"\d+", batch)
            assert (await head.run("head", "-n1", f"/home/{USER}/slurm-{number}.out")).text == "head"
            assert {"head", "h100-1"} <= set(both.splitlines())
