"""Every head of the corpus through the slurmctld of two releases: as it is, and after `meshctl init`.

What Slurm accepted before, it accepts after: with what meshd needs in force, and the user's settings, nodes and
partitions as they were.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meshd.cli import init_input
from meshd.config import Settings
from meshd.runtime.rootfs import RootFs
from meshd.runtime.run import Result, run
from meshd.slurm.head_programs import PROLOG_SLURMCTLD, RESUME_PROGRAM, SUSPEND_PROGRAM, SUSPEND_TIME_S
from meshd.slurm.init import probe
from meshd.slurm.init.apply import apply_init, check_init
from meshd.slurm.init.codes import InitRefused, Refusal
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitInput, InitPlan
from tests.integration.slurm_lab import Host, Lab, wait_until
from tests.integration.test_slurm_real import image_layers
from tests.slurm_conf_corpus import ADDRESS, CORPUS, HEAD, Case

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

LEFT = {"select_type", "task_prolog"}
"""Warnings that do not follow from the case alone: tests/unit/slurm has them."""
SETTINGS = Settings.model_validate(
    {
        "pools": {
            "h100": {"gpu": "h100", "gpus_per_node": 2, "max_nodes": 4, "cpus_min": 1, "memory_min_mib": 500},
            "cpu": {"max_nodes": 2, "cpus_min": 1, "memory_min_mib": 500},
        }
    }
)
SLOTS = {"h100-1", "h100-2", "h100-3", "h100-4", "cpu-1", "cpu-2"}
VOLATILE = ("boot_time", "hash_val", "next_job_id", "slurmctld(primary)", "slurmctld(backup)")
AMENDED = (
    "slurmctldparameters", "returntoservice", "treewidth", "slurmdtimeout", "messagetimeout", "unkillablesteptimeout",
    "selecttype", "selecttypeparameters", "grestypes", "srunportrange", "maxnodecount", "accountingstoragetres",
    "launchparameters", "taskprolog", "communicationparameters", "resumeprogram", "suspendprogram", "suspendtime",
    "resumetimeout", "suspendtimeout", "resumerate", "suspendrate", "privatedata", "prologslurmctld",
    "prologslurmctld[0]", "prologslurmctld[1]",
)  # fmt: skip
LISTENS = re.compile(r"^ *\d+: \S+:(1AA1|1AAB) \S+ 0A ", re.MULTILINE)
"""A listening socket on port 6817 or 6827, in /proc/net/tcp."""


@dataclass(frozen=True)
class Shown:
    """What a slurmctld shows of its configuration; `ended` is what it said where it did not start."""

    config: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ended: str = ""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    lab = Lab(image_layers(request.param), tmp_path_factory.mktemp("corpus") / "lab", suite=request.param)
    try:
        lab.start([HEAD])
        host = lab.hosts[HEAD]
        host.call("sh", "-c", f"echo {HEAD} >/etc/hostname")
        yield host
    finally:
        lab.close()


@pytest.mark.parametrize("name", CORPUS)
async def test_what_slurm_makes_of_a_head(head: Host, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CORPUS[name]
    write(head, case)
    before = Shown(ended="not looked at: Slurm waits for the missing file")
    if not case.unreachable and case.refused not in (Refusal.INCLUDE_MISSING, Refusal.INCLUDE_LOOP):
        before = look(head)
    if case.refused:
        texts = everything(head)
        with pytest.raises(InitRefused) as caught:
            await init(head, monkeypatch)
        assert caught.value.code is case.refused
        assert everything(head) == texts
        return
    plan = await init(head, monkeypatch)
    assert {finding.code for finding in plan.findings} - LEFT == case.warns - LEFT
    if not case.unreachable:
        after = look(head)
        assert not after.ended
        wanted_is_in_force(after)
        if not before.ended:
            the_users_is_as_it_was(before, after)
    then = plan_init(find(head))
    assert then.empty, then


def write(head: Host, case: Case) -> None:
    for directory in (head.conf_dir, head.files_dir):
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    root = Path(f"/proc/{head.pid}/root")
    for name, text in case.files.items():
        path = head.conf_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for name, text in case.elsewhere.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def everything(head: Host) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in head.conf_dir.rglob("*") if path.is_file()}


def find(head: Host) -> InitInput:
    return init_input.read_input(SETTINGS, ADDRESS, RootFs(Path(f"/proc/{head.pid}/root")))


async def init(head: Host, monkeypatch: pytest.MonkeyPatch) -> InitPlan:
    """As the command does it, with Slurm's parser of the lab's head."""

    async def inside(
        argv: list[str], *, timeout_s: float, env: Mapping[str, str] | None = None, check: bool = True, **_: object
    ) -> Result:
        conf = (env or {})["SLURM_CONF"].replace(str(head.conf_dir), "/etc/slurm")
        return await run(head.argv(["env", f"SLURM_CONF={conf}", *argv]), timeout_s=timeout_s, check=check)

    fs = RootFs(Path(f"/proc/{head.pid}/root"))
    have = find(head)
    plan = plan_init(have)
    check_init(plan, fs)
    monkeypatch.setattr(tempfile, "tempdir", str(head.conf_dir))  # where the lab's Slurm sees it
    await probe.check_parse(inside, have, plan)  # type: ignore[arg-type]
    monkeypatch.undo()
    apply_init(plan, datetime.now(UTC), fs)
    return plan


def look(head: Host) -> Shown:
    """Start slurmctld on these files, ask it, end it."""
    owner = head.call(
        "sh", "-c", "rm -rf /var/spool/slurmctld/* /var/log/slurm/*; stat -c %U /var/spool/slurmctld"
    ).strip()
    assert owner == "slurm"
    process = subprocess.Popen(
        head.argv(["slurmctld", "-D", "-c"]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    try:
        tables = [Path(f"/proc/{head.pid}/net/{name}") for name in ("tcp", "tcp6")]

        def answers() -> bool:
            if process.poll() is not None:
                return True
            if not any(LISTENS.search(table.read_text()) for table in tables):
                return False
            # A slurmctld that starts may lose a question; scontrol would wait for MessageTimeout, 30 s.
            return "SLURM_VERSION" in head.call("timeout", "5", "scontrol", "show", "config", check=False)

        wait_until(answers, "slurmctld's answer or end")
        if process.poll() is not None:
            assert process.stderr
            return Shown(ended=process.stderr.read() or f"exit status {process.returncode}")
        config = head.call("scontrol", "show", "config").partition("\n\n")[0]
        return Shown(
            {
                key.strip().lower(): value.strip()
                for key, _, value in (line.partition("=") for line in config.splitlines()[1:])
            },
            records(head.call("scontrol", "show", "node", "-o"), "NodeName"),
            records(head.call("scontrol", "show", "partition", "-o"), "PartitionName"),
        )
    finally:
        head.stop("slurmctld")  # by its pid file: nsenter does not pass a signal on
        process.communicate(timeout=30)


def records(text: str, key: str) -> dict[str, dict[str, str]]:
    found = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\S+?)=(\S*)", line))
        if key in fields:
            found[fields[key]] = fields
    return found


def items(shown: Shown, key: str) -> set[str]:
    return set(shown.config[key].split(",")) - {"(null)", "none", ""}


def wanted_is_in_force(shown: Shown) -> None:
    config = shown.config
    number = {
        key: int(config[key].split()[0])
        for key in ("treewidth", "slurmdtimeout", "messagetimeout", "unkillablesteptimeout")
    }
    assert "enable_configless" in config["slurmctldparameters"].split(",")
    assert config["returntoservice"] == "2"
    assert number["treewidth"] == 65533
    assert number["slurmdtimeout"] >= 300 or number["slurmdtimeout"] == 0
    assert number["messagetimeout"] >= 30
    assert number["unkillablesteptimeout"] >= max(300, 5 * number["messagetimeout"])
    assert config["selecttype"] == "select/cons_tres"
    assert "gpu" in config["grestypes"].split(",")
    assert config["srunportrange"] == "60001-63000"
    of_its_own = config.get("keepalivetime", "SYSTEM_DEFAULT") != "SYSTEM_DEFAULT"
    assert of_its_own or any(item.lower().startswith("keepalive") for item in items(shown, "communicationparameters"))
    programs = (config["resumeprogram"], config["suspendprogram"])
    if "/usr/bin/true" not in programs:  # of another tool
        assert programs == (str(RESUME_PROGRAM), str(SUSPEND_PROGRAM))
        assert int(config["suspendtime"].split()[0]) == SUSPEND_TIME_S
        assert {"idle_on_node_suspend", "enable_configless"} <= items(shown, "slurmctldparameters")
        prologs = [value for key, value in config.items() if key.startswith("prologslurmctld")]
        assert str(PROLOG_SLURMCTLD) in prologs
    assert shown.nodes.keys() >= SLOTS
    assert {"h100", "cpu"} <= shown.partitions.keys()
    for slot in SLOTS:
        fields = shown.nodes[slot]
        assert (fields["TmpDisk"], fields["Weight"], fields["RealMemory"]) == ("0", "1", "500"), "nothing is inherited"
    for name in ("h100", "cpu"):
        fields = shown.partitions[name]
        assert (fields["MaxTime"], fields["MaxNodes"], fields["AllowGroups"]) == ("UNLIMITED", "UNLIMITED", "ALL")


def the_users_is_as_it_was(before: Shown, after: Shown) -> None:
    for key, value in before.config.items():
        if key not in AMENDED and key not in VOLATILE:
            assert after.config.get(key) == value, key
    for key in ("communicationparameters", "launchparameters", "privatedata"):
        assert items(before, key) <= items(after, key)
    assert before.config.get("taskprolog", "(null)") in ("(null)", after.config.get("taskprolog"))
    fields = ("NodeAddr", "CPUTot", "RealMemory", "TmpDisk", "Weight", "Gres", "Sockets", "CoresPerSocket")
    for name, node in before.nodes.items():
        assert [after.nodes[name].get(key) for key in fields] == [node.get(key) for key in fields], name
    assert after.nodes.keys() == before.nodes.keys() | SLOTS
    keys = ("AllowGroups", "MaxTime", "MaxNodes", "Default", "OverSubscribe", "PriorityTier", "State", "DefMemPerCPU")
    for name, partition in before.partitions.items():
        assert [after.partitions[name].get(key) for key in keys] == [partition.get(key) for key in keys], name
    assert after.partitions.keys() == before.partitions.keys() | {"h100", "cpu"}
