"""One cluster with control groups, and a node without them: the agent's own settings with slurmd of two releases.

The head has the settings that suit machines. `vm` has control groups (v1, of this host). `pod` has the
capabilities of an ordinary container, and no control groups.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshd.slurm.show import node_settings
from tests.integration.slurm_lab import CONF as SLURM_CONF
from tests.integration.slurm_lab import NETWORK, Host, Lab, wait_until
from tests.integration.test_slurm_real import IMAGES, image_layers

CONTROLLERS = ("freezer", "cpuset", "memory", "cpuacct")
CGROUPS = Path("/sys/fs/cgroup")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
    pytest.mark.skipif(not (CGROUPS / "freezer/tasks").exists(), reason="needs a host with control groups v1"),
]

DOCKER = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod"
CONTAINER = ("setpriv", "--bounding-set", "-all," + ",".join(f"+{one}" for one in DOCKER.split(",")), "--")
HEAD = f"{NETWORK}.1:6817"
AGENT = Path(__file__).parents[2] / "deploy/node/meshd_node"
LIBRARY = Path(__file__).parents[2] / "deploy/container/slurmconf"
PUT = """
import json, sys
sys.path.insert(0, "/var/lib/meshd-slurm")
from meshd_node.paths import Paths
from meshd_node.slurm_files import SlurmLocal
local = SlurmLocal(Paths())
print(json.dumps(local.put(json.loads(sys.argv[1]))), ",".join(local.lacks))
"""
CONF = f"""{SLURM_CONF}SelectTypeParameters=CR_Core_Memory
PrologFlags=Contain
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=1
"""
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nConstrainCores=yes\nConstrainRAMSpace=yes\n"
"""Not ConstrainDevices: whoever runs this may be in a container that may not change the rules for devices."""

WHERE = "echo $SLURMD_NODENAME $(sed -n 's/.*:freezer://p' /proc/self/cgroup)"


@dataclass
class Cluster:
    """The hosts and their slots."""

    lab: Lab
    vm: str
    pod: str

    def host(self, name: str) -> Host:
        return self.lab.hosts[name]

    @property
    def head(self) -> Host:
        return self.host("head")

    def settle(self) -> tuple[list[str], str]:
        """Have the agent on the pod choose; slurmd's variables, and what jobs lack there."""
        head = node_settings(self.head.call("scontrol", "show", "config"))
        return self.settle_for(head)

    def settle_for(self, head: dict[str, str]) -> tuple[list[str], str]:
        said = self.host("pod").call(*CONTAINER, "python3", "-c", PUT, json.dumps(head)).strip()
        variables, _, lacks = said.rpartition(" ") if not said.endswith("}") else (said, "", "")
        return [f"{key}={value}" for key, value in json.loads(variables).items()], lacks

    def start_pod(self, variables: list[str]) -> None:
        self.host("pod").call(*CONTAINER, "env", *variables, "slurmd", "--conf-server", HEAD, "-N", self.pod)

    def wait_idle(self) -> None:
        def idle() -> bool:
            states = self.head.call("sinfo", "-h", "-N", "-o", "%N %T").split("\n")
            return {f"{self.vm} idle", f"{self.pod} idle"} <= {line.strip() for line in states}

        wait_until(idle, "both nodes are idle")

    def step(self, host: str = "head") -> dict[str, str]:
        """A step over both nodes; the control group of each one's task."""
        said = self.host(host).call("srun", "-N2", "-t1", "sh", "-c", WHERE)
        return dict(line.split() for line in said.splitlines())

    @property
    def plugin(self) -> str:
        """The line of CgroupPlugin in force in the container."""
        return [line for line in self.cached("cgroup.conf") if line.startswith("CgroupPlugin=")][-1]

    @property
    def off(self) -> str:
        return "CgroupPlugin=cgroup/v1" if self.lab.suite == "bookworm" else "CgroupPlugin=disabled"

    def cached(self, name: str) -> list[str]:
        return self.host("pod").call("cat", f"/var/spool/slurmd/conf-cache/{name}", check=False).splitlines()


@pytest.fixture(params=list(IMAGES))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    lab = Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)
    token = secrets.token_hex(3)
    cluster = Cluster(lab, f"vm-{token}", f"pod-{token}")
    try:
        lab.start(["head", "vm", "pod"])
        nodes = "".join(
            f"NodeName={slot} NodeAddr={lab.hosts[name].address} CPUs=2 RealMemory=500\n"
            for name, slot in (("vm", cluster.vm), ("pod", cluster.pod))
        )
        conf = cluster.head.conf_dir
        (conf / "slurm.conf").write_text(CONF + nodes + "PartitionName=all Nodes=ALL Default=YES\n")
        (conf / "cgroup.conf").write_text(CGROUP_CONF)
        cluster.head.start_slurmctld()
        mount = "".join(f"mkdir $r/{one} && mount -t cgroup -o {one} cgroup $r/{one} && " for one in CONTROLLERS)
        lab.hosts["vm"].call("sh", "-c", f"r={CGROUPS}; mount -t tmpfs tmpfs $r && {mount}true")
        lab.hosts["vm"].start_slurmd("--conf-server", HEAD, "-N", cluster.vm)
        library = tmp_path / "libslurmconf.so"
        subprocess.run(["make", "-s", "-B", "-C", LIBRARY, f"LIBRARY={library}"], check=True, timeout=60)
        files = lab.hosts["pod"].files_dir
        shutil.copytree(AGENT, files / "meshd_node", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(library, files)
        lab.hosts["pod"].call("install", "-D", "-t", "/usr/lib/meshd/pod", "/var/lib/meshd-slurm/libslurmconf.so")
        yield cluster
    finally:
        lab.close()
        for group in CGROUPS.glob(f"*/slurm*{cluster.vm}"):
            for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                path.rmdir()
            group.rmdir()


def test_machines_keep_control_groups_and_a_container_does_without(cluster: Cluster) -> None:
    pod = cluster.host("pod")
    said = pod.said(*CONTAINER, "slurmd", "-D", "--conf-server", HEAD, "-N", cluster.pod)
    assert "slurmd initialization failed" in said, "this is why the agent changes anything"
    variables, lacks = cluster.settle()
    assert lacks == "process_tracking,core_limits,memory_limits,accounting"
    cluster.start_pod(variables)
    cluster.wait_idle()
    there = cluster.step()
    assert cluster.vm in there[cluster.vm]
    assert cluster.vm not in there[cluster.pod]
    assert cluster.step("pod").keys() == there.keys(), "from the container too"

    # The head's files come again, changed: by reconfigure, and by a restart of slurmctld.
    for again in ("reconfigure", "restart"):
        cluster.wait_idle()  # a step that ends while slurmctld is away is told of a minute later
        with (cluster.head.conf_dir / "slurm.conf").open("a") as file:
            file.write(f"# {again}\n")
        if again == "reconfigure":
            cluster.head.call("scontrol", "reconfigure")
        else:
            cluster.head.stop("slurmctld")
            cluster.head.start_slurmctld()
            cluster.head.call("scontrol", "reconfigure")

        def has_it(line: str = f"# {again}") -> bool:
            return line in cluster.cached("slurm.conf")

        wait_until(has_it, f"the new file after {again}")
        assert "TaskPlugin=task/none" in cluster.cached("slurm.conf")
        assert cluster.plugin == cluster.off
        cluster.wait_idle()
        assert pod.alive("slurmd")
        assert cluster.vm in cluster.step()[cluster.vm]

    # Memory is watched instead of limited.
    too_much = "head -c 300m /dev/zero | tail | sleep 60"
    said = cluster.head.said("srun", "-w", cluster.pod, "-t1", "--mem=100", "sh", "-c", too_much)
    assert "Exceeded job memory limit" in said

    # What slurmd has for itself does not reach jobs.
    env = cluster.head.call("srun", "-w", cluster.pod, "-t1", "env")
    assert "MESHD_SLURM_LOCAL" not in env
    assert "LD_PRELOAD" not in env


def test_a_head_without_a_cgroup_conf(cluster: Cluster) -> None:
    (cluster.head.conf_dir / "cgroup.conf").unlink()
    cluster.head.stop("slurmctld")
    cluster.head.start_slurmctld()
    variables, lacks = cluster.settle()
    assert lacks == "process_tracking,core_limits,accounting"
    cluster.start_pod(variables)
    cluster.wait_idle()
    assert [line for line in cluster.cached("cgroup.conf") if line and not line.startswith("#")] == [cluster.off]
    assert cluster.step().keys() == {cluster.vm, cluster.pod}


def test_the_settings_end_with_those_of_the_head(cluster: Cluster) -> None:
    assert cluster.settle()[0]
    variables, lacks = cluster.settle_for({"ProctrackType": "proctrack/linuxproc", "CgroupPlugin": "cgroup/v1"})
    assert lacks == ""
    assert not any("slurm.conf" in line for line in variables)
    assert (
        cluster.host("pod").call("sh", "-c", "ls /var/lib/meshd-node/slurm | grep -c slurm.conf", check=False) == "0\n"
    )
