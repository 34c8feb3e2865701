"""Nodes bear their slots' names, and all nodes and the head know them, without a name server that does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

# As torchrun does: the master is who bears the name, and the others connect to the name.
MEET = """\
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1); export MASTER_ADDR
cat >/tmp/meet.py <<'EOF'
import os, socket, time
master, own = os.environ["MASTER_ADDR"], socket.gethostname()
if own == master:
    with socket.create_server((master, 29500)) as server:
        server.settimeout(20)
        for _ in range(int(os.environ["SLURM_NNODES"]) - 1):
            peer, address = server.accept()
            print("met", peer.recv(64).decode(), "as", socket.getnameinfo(address, 0)[0])
else:
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((master, 29500), 5).sendall(own.encode())
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)
EOF
srun --ntasks-per-node=1 python3 -c "$(cat /tmp/meet.py)"
"""

# Takes questions and says nothing, as a name server behind a wrong route; it notes what it was asked.
SILENT = """\
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    words, at, data = [], 12, server.recv(512)
    while data[at]:
        words.append(data[at + 1 : at + 1 + data[at]].decode())
        at += data[at] + 1
    print(".".join(words), flush=True)
"""
TURN_SILENT = """\
cat >/root/silent.py
cp /etc/resolv.conf /root/resolv.conf.before
echo 'nameserver 127.0.0.1' >/etc/resolv.conf
systemd-run --quiet --collect --unit=silent-dns -p StandardOutput=truncate:/root/silent.log python3 /root/silent.py
"""
TURN_BACK = "systemctl stop silent-dns; cp /root/resolv.conf.before /etc/resolv.conf"

STEPS = """\
for step in 1 2 3; do srun --ntasks-per-node=1 hostname; done
sbatch --parsable --chdir=/tmp --gpus=1 --wrap true
scontrol show job "$SLURM_JOB_ID" | grep -o 'AllocNode:Sid=[^:]*'
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(booted: Lab) -> dict[str, str]:
    """Two machines; by slot."""
    await booted.begin(__name__, keep=True)
    await booted.have(2)
    return {slot: row["machine"] for slot, row in (await booted.by_slot()).items()}


async def output(lab: Lab, job: str, machine: str) -> list[str]:
    """What a job printed, once it has ended."""

    async def ended() -> bool:
        return (await lab.job(job))["JobState"] not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}

    await lab.until(ended, f"job {job} has ended")
    text = await lab.inside(machine, "cat", f"/tmp/slurm-{job}.out")
    assert (await lab.job(job))["JobState"] == "COMPLETED", text
    return text.splitlines()


async def test_names_lead_to_the_nodes_and_back(booted: Lab, pair: dict[str, str]) -> None:
    lab = booted
    slots = await lab.slots()

    async def known(machine: str, slot: str) -> None:
        address = slots[slot].address
        ask = f"getent ahostsv4 {slot} | sort -u | grep STREAM; getent hosts {address}"

        async def look() -> bool:
            told = await (lab.inside(machine, "sh", "-c", ask) if machine else lab.head.shell(ask))
            return set(told.split()) == {address, "STREAM", slot}

        await lab.until(look, f"{slot} leads to {address} and back on {machine or 'the head'}")

    for machine in ("", *pair.values()):
        for slot in pair:
            await known(machine, slot)
    for slot, machine in pair.items():
        assert (await lab.inside(machine, "sh", "-c", "hostname; cat /etc/hostname")).split() == [slot, slot]
        assert await lab.inside(machine, "getent", "ahostsv4", "head") != ""
    row = (await lab.checks())["node names"]
    assert (row["status"], row["text"]) == ("ok", "2 in /etc/hosts")


async def test_the_nodes_of_a_job_meet_by_name(booted: Lab, pair: dict[str, str]) -> None:
    job = await booted.sbatch(MEET, "-N2", "--gpus=2")
    first, second = sorted(pair)
    assert await output(booted, job, pair[first]) == [f"met {second} as {second}"]


async def test_a_silent_name_server_holds_nothing_up(
    booted: Lab, pair: dict[str, str], figure: Callable[[str], None]
) -> None:
    lab, (first, second) = booted, sorted(pair)
    hypervisor = lab.cluster.world.hypervisor
    names = ["head", *(machine.name for machine in lab.alive())]

    async def everywhere(script: str) -> None:
        run = (hypervisor.run(name, ["sh", "-ec", script], stdin=SILENT.encode()) for name in names)
        await asyncio.gather(*run)

    try:
        await everywhere(TURN_SILENT)
        await lab.head.run("systemctl", "restart", "slurmctld")
        began = time.monotonic()
        job = await lab.sbatch(STEPS, "-N2", "--gpus=2")
        # srun also tells when it had to wait for the step before to end.
        said = [line for line in await output(lab, job, pair[first]) if not line.startswith("srun: ")]
        figure(f"a job of three steps over two nodes took {time.monotonic() - began:.1f} s beside a silent name server")
        asked = await lab.head.run("cat", "/root/silent.log")
    finally:
        await everywhere(TURN_BACK)
    assert sorted(said[:6]) == [first] * 3 + [second] * 3
    assert said[7:] == ["AllocNode:Sid=head"]
    assert "100.in-addr.arpa" not in asked.text
    later = said[6]
    assert (await lab.job(later))["AllocNode:Sid"].partition(":")[0] == first


async def test_the_head_s_file_is_as_it_was_when_the_nodes_are_gone(booted: Lab, pair: dict[str, str]) -> None:
    lab = booted

    async def there() -> str:
        text = await lab.head.shell("cat /etc/hosts")
        return text if "# BEGIN meshd" in text and all(slot in text for slot in pair) else ""

    with_names = await lab.until(there, "the names are there")
    await lab.write_settings(lab.settings_with().replace("[slurm]\n", "[slurm]\nhead_hosts = false\n"))

    async def removed() -> bool:
        return "# BEGIN meshd" not in await lab.head.shell("cat /etc/hosts")

    await lab.until(removed, "the names are taken out")
    without = await lab.head.shell("cat /etc/hosts")
    await lab.write_settings(lab.settings_with())

    async def put_back() -> bool:
        return await lab.head.shell("cat /etc/hosts") == with_names

    await lab.until(put_back, "the names are there again")
    await lab.have(0)
    await lab.until(removed, "the names went with the nodes")
    assert await lab.head.shell("cat /etc/hosts") == without
