"""TaskProlog in a real Slurm of two versions: variables arrive as written, and where there are none jobs go on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshd.bootstrap.assets import task_prolog
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.task_prolog import TASK_PROLOG
from meshd.slurm.init.types import InitInput
from tests.integration.slurm_lab import Host, Lab, wait_until
from tests.integration.test_slurm_real import HEAD_IP, IMAGES, LAB_SETTINGS, image_layers, init, pytestmark

__all__ = ["pytestmark"]

OWN = "/usr/local/sbin/site-task-prolog"
VALUES = {
    "PLAIN": "1", "SPACES": "  two  spaces  ", "QUOTES": "a'b\"c`d", "DOLLAR": "$HOME ${X} $(id)", "UTF8": "größe 日本",
    "BACKSLASH": "a\\nb\\", "EQUALS": "a=b=c", "EMPTY": "", "HASH": "# no comment", "EXPORT": "export A=1",
    "GLOB": "*?[a]", "LONG": "x" * 4000,
}  # fmt: skip
SHOW = f"import json, os; print(json.dumps({{k: os.environ.get(k) for k in {list(VALUES)}}}))"
PYTHON = f"python3 -c {shlex.quote(SHOW)}"


def put(host: Host, path: str, text: str, mode: str) -> None:
    script = f"mkdir -p $(dirname {path}); cat >{path}; chmod {mode} {path}"
    subprocess.run(host.argv(["sh", "-c", script]), input=text.encode(), check=True, timeout=60)


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)
    try:
        lab.start(["head", "m1"])
        yield lab
    finally:
        lab.close()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces")
def test_variables_arrive_unchanged_and_a_missing_file_ends_no_job(lab: Lab) -> None:
    head, m1 = lab.hosts["head"], lab.hosts["m1"]
    node = (
        f"NodeName=m1 NodeAddr={m1.address} CPUs=2 RealMemory=500 State=UNKNOWN\nPartitionName=p Nodes=m1 Default=YES"
    )
    init(lab, user_conf=None)
    conf = head.conf_dir / "slurm.conf"
    conf.write_text(f"{conf.read_text()}{LAB_SETTINGS}\nTaskProlog={TASK_PROLOG}\n{node}\n")
    head.start_slurmctld()
    m1.start_slurmd("--conf-server", f"{HEAD_IP}:6817", "-N", "m1")
    wait_until(lambda: "idle" in head.call("sinfo", "-h", "-n", "m1", "-o", "%T"), "the node is idle")

    assert "can not be executed" in head.said("srun", "-p", "p", "true"), "the program itself must be on every node"
    put(m1, str(TASK_PROLOG), task_prolog(), "755")
    assert head.call("srun", "-p", "p", "echo", "fine") == "fine\n", "a node of the user's, with the program alone"

    put(
        m1, "/etc/meshd-node/job.env", "".join(f"{k}={v}\n" for k, v in VALUES.items()) + "3BAD=x\n=y\nno line\n", "644"
    )
    shown = ("python3", "-c", SHOW)

    def srun(*before: str) -> dict[str, str]:
        return dict(json.loads(head.call(*before, "srun", "-p", "p", *shown)))

    assert srun() == VALUES
    assert srun("salloc", "-Q", "-p", "p") == VALUES
    assert srun("env", "PLAIN=mine", "EMPTY=full") == {**VALUES, "PLAIN": "mine", "EMPTY": "full"}
    assert json.loads(head.call("srun", "-p", "p", "--export=NONE", "/usr/bin/python3", "-c", SHOW)) == VALUES

    script = f"{PYTHON} >/tmp/batch; srun {PYTHON} >/tmp/step; export UTF8=later; srun {PYTHON} >/tmp/later"
    head.call("env", "SPACES=mine", "sbatch", "-W", "-p", "p", "-o", "/dev/null", "--wrap", script)
    own = {**VALUES, "SPACES": "mine"}
    for name, expected in (("batch", own), ("step", own), ("later", {**own, "UTF8": "later"})):
        assert json.loads(m1.call("cat", f"/tmp/{name}")) == expected
    assert "idle" in head.call("sinfo", "-h", "-n", "m1", "-o", "%T")

    # A site's own TaskProlog, with the line that `meshctl init` names.
    line = f"if [ -x {TASK_PROLOG} ]; then {TASK_PROLOG}; fi"
    have = InitInput("lab", "head", HEAD_IP, f"{conf.read_text()}TaskProlog={OWN}\n", task_prolog="x", pools=[])
    (told,) = [found.text for found in plan_init(have).findings if found.code is Warn.TASK_PROLOG]
    assert told.endswith(line)
    put(m1, OWN, f"#!/bin/sh\necho export MINE=yes\n{line}\n", "755")
    conf.write_text(conf.read_text().replace(f"TaskProlog={TASK_PROLOG}", f"TaskProlog={OWN}"))
    head.call("scontrol", "reconfigure")
    both = ("srun", "-p", "p", "sh", "-c", 'echo "$MINE $EQUALS"')
    wait_until(lambda: head.call(*both) == "yes a=b=c\n", "both programs' variables")
    m1.stop("slurmd")
