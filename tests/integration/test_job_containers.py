"""`srun --container` with the oci.conf of `meshctl init`, as an ordinary user, with Slurm of two releases and crun.

On two nodes, which get their files from the head, and on the head, which has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from meshd.slurm.capabilities import parse_version
from meshd.slurm.init.containers import render_oci
from tests.integration.slurm_lab import CONF as SLURM_CONF
from tests.integration.slurm_lab import NETWORK, Host, Lab, wait_until
from tests.integration.test_slurm_real import IMAGES, image_layers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

USER, UID = "alice", "4711"
HOME = f"/home/{USER}"
BUNDLE = f"{HOME}/bundle"
CONF = f"""{SLURM_CONF}SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
KillWait=5
"""
SYSTEM = ("/usr", "/etc", "/dev", "/proc")
"""What the container has of the node: its image is a folder of links."""

CONFIG = {
    "ociVersion": "1.0.0",
    "process": {"terminal": False, "user": {"uid": 0, "gid": 0}, "args": ["sh"], "env": ["PATH=/usr/bin"], "cwd": "/"},
    "root": {"path": "rootfs"},
    "mounts": [{"destination": one, "type": "bind", "source": one, "options": ["rbind", "ro"]} for one in SYSTEM],
    "linux": {
        "uidMappings": [{"containerID": 0, "hostID": int(UID), "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": int(UID), "size": 1}],
        "namespaces": [{"type": one} for one in ("mount", "user")],
    },
}


@dataclass
class Cluster:
    """A head, and two nodes with crun, which have the user's home with one bundle."""

    lab: Lab
    nodes: tuple[str, str]

    @property
    def tasks(self) -> int:
        """Tasks with a container on a node: Slurm 22.05 starts one ("unexpected number of tasks 2 > 1")."""
        return 1 if self.lab.suite == "bookworm" else 2

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    def user(self, *argv: str) -> list[str]:
        return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", f"HOME={HOME}", *argv]

    def srun(self, *argv: str) -> tuple[str, str]:
        """The exit code of a step in a container, and what it said."""
        script = 'cd /tmp; "$@" 2>&1; echo "exit $?"'
        words = self.user("sh", "-c", script, "srun", "srun", "-t1", f"--container={BUNDLE}", *argv)
        said, _, code = self.head.call(*words).rstrip().rpartition("exit ")
        return code, said

    def on_nodes(self, *argv: str, check: bool = True) -> str:
        return "".join(self.lab.hosts[name].call(*argv, check=check) for name in ("one", "two"))


@pytest.fixture(scope="module", params=list(IMAGES))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    images = pytest.importorskip("deploy.sandbox.images", reason="no images here")
    crun = asyncio.run(images.ensure_crun_layer(request.param))
    lab = Lab(f"{crun}:{image_layers(request.param)}", tmp_path_factory.mktemp("lab"), suite=request.param)
    token = secrets.token_hex(3)
    cluster = Cluster(lab, (f"one-{token}", f"two-{token}"))
    try:
        lab.start(["head", "one", "two"])
        conf, head = cluster.head.conf_dir, cluster.head
        nodes = "".join(
            f"NodeName={slot} NodeAddr={lab.hosts[name].address} CPUs=2 RealMemory=500\n"
            for name, slot in zip(("one", "two"), cluster.nodes, strict=True)
        )
        nodes += f"NodeName=head NodeAddr={head.address} CPUs=2 RealMemory=500\nPartitionName=head Nodes=head\n"
        (conf / "slurm.conf").write_text(
            f"{CONF}{nodes}PartitionName=all Nodes={','.join(cluster.nodes)} Default=YES\n"
        )
        (conf / "oci.conf").write_text(render_oci(parse_version(head.call("slurmctld", "-V"))))
        head.without_cgroups()
        for host in lab.hosts.values():
            host.call("useradd", "--uid", UID, "--create-home", USER)
        head.start_slurmctld()
        served = ("--conf-server", f"{NETWORK}.1:6817")
        for name, slot in zip(("head", "one", "two"), ("head", *cluster.nodes), strict=True):
            host = lab.hosts[name]
            folders = " ".join(f"{BUNDLE}/rootfs{one}" for one in (*SYSTEM, "/tmp"))
            links = " && ".join(f"ln -s usr/{one} {BUNDLE}/rootfs/{one}" for one in ("bin", "sbin", "lib", "lib64"))
            script = f"mkdir -p {folders} && {links} && cat >{BUNDLE}/config.json <<'E'\n{json.dumps(CONFIG)}\nE\n"
            host.call("sh", "-ec", f"{script}chown -R {USER}: {BUNDLE}")
            host.call("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")  # crun looks which kind it is
            host.start_slurmd(*(served if host is not head else ()), "-N", slot)

        def idle() -> bool:
            return head.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 3

        wait_until(idle, "all nodes are idle")
        yield cluster
    finally:
        lab.close()


def test_one_bundle_serves_tasks_on_several_nodes(cluster: Cluster) -> None:
    each = cluster.tasks
    script = "echo $SLURM_PROCID $SLURMD_NODENAME $(id -u); ls /"
    code, said = cluster.srun("-N2", f"--ntasks-per-node={each}", "sh", "-c", script)
    assert code == "0", said
    lines = sorted(line for line in said.splitlines() if line[:1].isdigit())
    if cluster.lab.suite == "bookworm":
        assert lines == ["0", "0"], "22.05 does not tell a container which task it is"
    else:
        assert lines == [f"{task} {cluster.nodes[task // each]} 0" for task in range(2 * each)]
    assert "home" not in said.split(), "the node's other folders are not in the container"


def test_the_exit_code_is_that_of_the_program(cluster: Cluster) -> None:
    assert cluster.srun("-N1", "sh", "-c", "exit 7")[0] == "7"


def test_the_nodes_slurm_conf_is_not_named_in_the_container(cluster: Cluster) -> None:
    said = cluster.srun("-N1", "env")[1]
    assert "SLURM_JOB_ID=" in said
    if cluster.lab.suite != "bookworm":  # 22.05 cannot filter
        assert "SLURM_CONF=" not in said


def test_cancel_ends_the_containers_and_leaves_nothing(cluster: Cluster) -> None:
    head = cluster.head
    script = f"#!/bin/sh\nsrun --container={BUNDLE} sleep 1000\n"
    options = f"-N2 --ntasks-per-node={cluster.tasks} -t5 -o /dev/null"
    words = cluster.user("sh", "-c", f"cd /tmp; printf '{script}' | sbatch --parsable {options}")
    job = head.call(*words).strip()
    count = ("sh", "-c", "pgrep -c -x sleep")
    before = "1\n1\n"  # each host's own first process sleeps too
    running = f"{1 + cluster.tasks}\n" * 2
    wait_until(lambda: cluster.on_nodes(*count, check=False) == running, "the containers run")
    head.call("scancel", job)
    wait_until(lambda: cluster.on_nodes(*count, check=False) == before, "the programs are gone")
    wait_until(lambda: head.call("squeue", "-h") == "", "the job is gone")
    left = ("sh", "-c", f"ls /tmp/crun.{UID}; ls /var/spool/slurmd | grep oci || true")
    wait_until(lambda: cluster.on_nodes(*left) == "", "nothing is left of the containers")


def test_nobody_believes_another_users_notes(cluster: Cluster) -> None:
    """slurmd asks as root at a step's end; another user may have made the directory first."""
    host = cluster.lab.hosts["one"]
    notes = f"/tmp/crun.{UID}"
    try:
        host.call("sh", "-ec", f"rm -rf {notes}; mkdir -m 777 {notes}; chown 4712 {notes}")
        assert cluster.srun("-w", cluster.nodes[0], "true")[0] != "0"
        assert host.call("ls", notes) == ""
    finally:
        host.call("rm", "-rf", notes)
    assert cluster.srun("-w", cluster.nodes[0], "true")[0] == "0"
    assert "uid=0(root)" in host.call("id")
    asked = host.call("sh", "-c", f"d={notes}; test -O $d || echo refused")
    assert asked == "refused\n", "root does not ask crun about a user's containers"


@pytest.mark.parametrize("where", ["node", "head"])
def test_without_crun_the_step_fails_instead_of_running_on_the_node(cluster: Cluster, where: str) -> None:
    host = cluster.lab.hosts["one" if where == "node" else "head"]
    options = ("-w", cluster.nodes[0]) if where == "node" else ("-p", "head")
    assert cluster.srun(*options, "sh", "-c", "echo ran") == ("0", "ran\n")
    try:
        host.call("mv", "/usr/bin/crun", "/usr/bin/crun.away")
        code, said = cluster.srun(*options, "sh", "-c", "echo ran")
        assert code == "127"
        assert "ran\n" not in said
    finally:
        host.call("mv", "/usr/bin/crun.away", "/usr/bin/crun")
