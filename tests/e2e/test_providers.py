"""All clouds at once: machines of each become nodes of one partition, and what one refuses another one gives."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.ledger import RentedMachine
from deploy.sandbox.demo.report import rungs
from deploy.sandbox.vendors import VENDORS
from meshd.contract.faults import CloudFault, FaultKind, When
from meshd.provider_api import GANG_TAG
from tests.e2e.lab import GPU, Lab
from tests.sent import script_of

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CLOUDS = tuple(VENDORS)
COOLDOWN_S = 20.0
FIND = """\
umask 077
cat >/run/secrets-to-find
grep -rlFf /run/secrets-to-find /etc /opt /run /tmp /var /home 2>/dev/null | grep -v secrets-to-find |
    xargs -r stat -c '%a %n'
rm /run/secrets-to-find
"""
"""Prints mode and path of each file that has one of the lines of standard input in it."""

SHOWN = """\
ps -eo args
if [ -d /run/systemd/system ]; then journalctl --no-pager -b; else cat /var/log/meshd-pod/*/current; fi
"""
"""Prints what users of a machine may see: processes, and what services wrote into their logs."""

PLACES = re.compile(
    r"[4-7]00 (/etc/meshd/credentials/tailscale/auth_key|/var/lib/cloud/\S+)"
    r"|600 /var/lib/meshd/tailscale-auth-key\.json"
    r"|600 /etc/meshd-node/(tailscale\.key|join\.json)"
    r"|4[04]0 /run/credentials/meshd\.service/tailscale_auth_key"
)
"""Where these secrets belong. systemd's copy of a credential is 0440 for its access list, below a closed directory."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clouds(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with all clouds enabled."""
    async with booted.enabled(*CLOUDS) as lab:
        yield lab


@pytest.fixture
def wide(clouds: Lab, lab: Lab) -> Lab:
    """The same, with 0 GPUs and no faults."""
    assert clouds is lab
    return lab


def secrets_of(machines: list[RentedMachine]) -> list[str]:
    """What stage 1 carries that nobody else may read: the auth key of all, and a token for each machine or gang."""
    keys = {key for machine in machines for key in re.findall(r"tskey-auth-\w+-\w+", script_of(machine))}
    tokens = [token for machine in machines for token in re.findall(r'"token":"([^"]+)"', script_of(machine))]
    calls = {machine.tags.get(GANG_TAG) or machine.token for machine in machines}
    assert len(keys) == 1 and len(set(tokens)) == len(calls)
    return [*keys, *tokens]


async def out_of_place(lab: Lab, machine: str, secrets: list[str]) -> list[str]:
    """Where on a machine, or on the head, a secret is that has no business there, or that others may read."""
    hypervisor = lab.cluster.world.hypervisor
    where = machine if machine == "head" else next(m.name for m in lab.all_alive() if m.token == machine)
    found = await hypervisor.run(where, ["sh", "-c", FIND], stdin="\n".join(secrets).encode(), timeout_s=60)
    assert found.text, "each machine has its own key at least"
    shown = await hypervisor.run(where, ["sh", "-c", SHOWN])
    told = [line for line in shown.text.splitlines() if any(secret in line for secret in secrets)]
    return [line for line in found.text.splitlines() if not PLACES.fullmatch(line)] + told


async def test_one_job_across_all_clouds(wide: Lab, figure: Callable[[str], None]) -> None:
    lab = wide
    await lab.timing(no_capacity_cooldown_s=COOLDOWN_S)
    lab.room(**dict.fromkeys(CLOUDS, 1))
    ever = {cloud: len(lab.ledger(cloud)) for cloud in CLOUDS}
    up = await lab.scale(len(CLOUDS), "--spread")
    assert up["outcome"] == "reached"
    figure(f"{len(CLOUDS)} machines, one of each cloud, from nothing to READY in {up['elapsed_s']:.1f} s")

    rows = await lab.nodes()
    assert sorted(row["provider"] for row in rows.values()) == sorted(CLOUDS)
    machines = {machine.token: machine for machine in lab.all_alive()}
    assert set(machines) == set(rows) == await lab.devices()
    for name, row in rows.items():
        assert machines[name] in lab.alive(row["provider"])
        assert row["usd_per_hour"] == pytest.approx(machines[name].usd_per_hour)

    async def idle() -> bool:
        joined = {s.name: (s.address, s.states) for s in (await lab.slots()).values() if s.address.startswith("100.")}
        return joined == {row["slot"]: (row["address"], {"IDLE"}) for row in rows.values()}

    await lab.until(idle, "Slurm has each at its address, idle")

    began = time.monotonic()
    tell = 'echo "$SLURMD_NODENAME has $(nvidia-smi -L)"'
    said = await lab.srun(f"-N{len(CLOUDS)}", "--gpus-per-node=1", "sh", "-c", tell)
    figure(f"srun on all of them as an ordinary user in {time.monotonic() - began:.1f} s")
    assert len(set(GPU.findall(said))) == len(CLOUDS), said
    features = await lab.features()
    for row in rows.values():
        assert row["provider"] in features[row["slot"]]
        assert machines[row["machine"]].gpu_name in said
        assert ("spot" if machines[row["machine"]].spot else "ondemand") in features[row["slot"]]
        kind = "vm" if machines[row["machine"]].pod is None else "pod"
        assert (row["pod"], kind in features[row["slot"]]) == (kind == "pod", True)
        here = await lab.srun("-N1", f"--constraint={row['provider']}", "printenv", "SLURMD_NODENAME")
        assert here == row["slot"]

    secrets = secrets_of(list(machines.values()))
    for name in ("head", *machines):
        assert await out_of_place(lab, name, secrets) == [], name
    for machine in machines.values():
        assert not any(secret in lab.cluster.world.hypervisor.console(machine.name) for secret in secrets)

    down = await lab.scale(0)
    figure(f"back to nothing in {down['elapsed_s']:.1f} s")
    await lab.nothing_left()
    for cloud in CLOUDS:
        assert [machine.end for machine in lab.ledger(cloud)[ever[cloud] :]] == ["asked"], cloud
    assert not lab.cluster.clouds.paperspace.scripts, "startup scripts hold a key"


async def test_down_the_ladder(wide: Lab, figure: Callable[[str], None]) -> None:
    lab = wide
    await lab.until(lab.nothing_left_alone, "no offer is left alone any more")
    others = tuple(cloud for cloud in CLOUDS if cloud != "lambda")
    before = "providers = [" + ", ".join(f'"{cloud}"' for cloud in CLOUDS) + "]"
    assert before in lab.settings_with()
    await lab.write_settings(lab.settings_with().replace(before, before.replace('"lambda", ', "")))
    for cloud, kind in (
        ("gce", FaultKind.NO_CAPACITY),
        ("runpod", FaultKind.NO_CAPACITY),
        ("paperspace", FaultKind.QUOTA),
    ):
        lab.fault(CloudFault(kind, "launch", When.ALWAYS), cloud)
    lab.fault(CloudFault(FaultKind.CUT_AFTER, "launch", times=2), "aws")
    ever, event = {cloud: len(lab.ledger(cloud)) for cloud in CLOUDS}, await lab.last_event()
    up = await lab.scale(2, "--spread")
    figure(f"2 machines over five offers, of which four refuse, READY in {up['elapsed_s']:.1f} s")

    assert [len(lab.ledger(cloud)) - ever[cloud] for cloud in others] == [2 * (cloud == "aws") for cloud in others]
    rows = await lab.nodes()
    assert {row["provider"] for row in rows.values()} == {"aws"}
    assert {machine.token for machine in lab.all_alive()} == set(rows)
    assert len(rows) == 2

    tried = rungs(await lab.events(event))
    assert [(rung.offer.rsplit("/", 2)[0].split("/")[0], sorted(rung.refused)) for rung in tried] == [
        ("gce", ["no_capacity"]),
        ("runpod", ["no_capacity"]),
        ("runpod", ["no_capacity"]),
        ("paperspace", ["quota_exceeded"]),
        ("aws", []),
    ]
    assert (tried[-1].rented, tried[-1].unclear) == (2, 2)
    assert sum(rung.rented for rung in tried) == 2

    told = [rung for row in rows.values() for rung in await explained(lab, row["slot"])]
    # A machine that is a step behind the other one need not ask those that refused it.
    assert ("paperspace", "quota") in {(rung["provider"], rung["outcome"]) for rung in told}
    words = " ".join(rung["words"] for rung in told)
    assert "does not have enough resources" in words
    assert "no longer any instances available" in words
    assert "maximum number of machines for your team" in words


async def explained(lab: Lab, slot: str) -> list[dict[str, Any]]:
    """The rungs of a slot's way to its machine."""
    rungs_of: list[dict[str, Any]] = (await lab.ask("explain", slot))["rungs"]
    assert (rungs_of[-1]["provider"], rungs_of[-1]["outcome"]) in {("aws", "rented"), ("aws", "adopted")}
    return rungs_of
