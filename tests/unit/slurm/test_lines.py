"""What root's unit lets into Slurm's files, and the many things that it does not."""

from __future__ import annotations

import pytest

from meshd.plan.slurm_lines import Allowed, LineRefused, allowed_by, check
from meshd.slurm.nodes import HEADER, PoolLine, render
from tests.unit.slurm.slurm_nodes import GOLDEN, H100, NODE

ALLOWED = Allowed({"h100": 6, "cpu": 1}, frozenset({"h100", "misc"}))
FREE = "NodeName=h100-1 NodeAddr=239.192.0.1 CPUs=32 RealMemory=200000 State=DOWN"
GPU = "NodeName=h100-1 Name=gpu Type=h100 File=/dev/nvidia[0-7]"


def refused(nodes: str, gres: str = "", allowed: Allowed | None = ALLOWED) -> str:
    with pytest.raises(LineRefused) as caught:
        check(nodes, gres, allowed)
    return str(caught.value)


def test_what_meshd_writes_is_taken() -> None:
    found = check(GOLDEN, HEADER + GPU + "\n", ALLOWED)
    assert found == Allowed({"h100": 6, "cpu": 1}, frozenset({"h100", "misc"}))
    check("", "", ALLOWED)
    check(f"{FREE}\n", f"{GPU}\n", ALLOWED)


MADE = FREE.replace("239.192.0.1", "100.64.0.1")


@pytest.mark.parametrize(
    "line",
    [
        FREE,
        FREE.replace("State=DOWN", 'State=DOWN Reason="meshd: free slot"'),
        FREE.replace("State=DOWN", "State=CLOUD"),
        MADE.replace("State=DOWN", "State=CLOUD"),
        MADE.replace("State=DOWN", "State=UNKNOWN"),
    ],
)
def test_the_forms_of_a_line(line: str) -> None:
    check(f"{line}\n", f"{GPU}\n", ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        FREE.replace("State=DOWN", "State=UNKNOWN"),
        FREE.replace("State=DOWN", "State=DRAIN"),
        FREE.replace("State=DOWN", "State=FUTURE"),
        FREE.replace(" State=DOWN", ""),
        FREE.replace("State=DOWN", 'State=CLOUD Reason="x"'),
        FREE.replace("State=DOWN", "State=CLOUD+DRAIN"),
        FREE.replace("239.192.0.1", "100.64.0.1"),
        FREE.replace("239.192.0.1", "100.64.0.1").replace("State=DOWN", 'State=UNKNOWN Reason="x"'),
    ],
)
def test_no_other_form_of_a_line(line: str) -> None:
    assert refused(f"{line}\n")


HOSTILE = [
    "PluginDir=/tmp/x",
    "pluginDir=/tmp/x",
    "Include /tmp/x",
    "include /tmp/x",
    "  Include /tmp/x",
    "SlurmctldParameters=x",
    "Prolog=/tmp/x",
    "JobSubmitPlugins=lua",
    f"{FREE} PluginDir=/tmp/x",
    f"PluginDir=/tmp/x {FREE}",
    f"{FREE} Prolog=/tmp/x",
    f"{FREE} include /tmp/x",
    f"{FREE}\\",
    f"{FREE} \\\nPluginDir=/tmp/x",
    "# comment \\\nPluginDir=/tmp/x",
    f"{FREE}\rPluginDir=/tmp/x",
    f"{FREE}\x00PluginDir=/tmp/x",
    f"{FREE}\x0bPluginDir=/tmp/x",
    f"{FREE}\x0cPluginDir=/tmp/x",
    f"{FREE}\x85PluginDir=/tmp/x",
    f"{FREE}\u2028PluginDir=/tmp/x",
    f"{FREE}\u00a0Port=1",
    f"{FREE}\tPort=1",
    f"{FREE}  Feature=a",
    f"{FREE} Weight=1",
    f"{FREE} ",
    f" {FREE}",
    f"{FREE} # x",
    f"{FREE} Feature=a Feature=b",
    f"{FREE} State=DOWN",
    FREE.replace("NodeName", "nodename"),
    FREE.replace("NodeName", "NODENAME"),
    FREE.replace("CPUs", "cpus"),
    FREE.replace("CPUs=32", "CPUs=0"),
    FREE.replace("CPUs=32", "CPUs=-1"),
    FREE.replace("CPUs=32", "CPUs=65534"),
    FREE.replace("CPUs=32", "CPUs=999999"),
    FREE.replace("RealMemory=200000", "RealMemory=9999999999"),
    FREE.replace("h100-1", "DEFAULT"),
    FREE.replace("h100-1", "default"),
    FREE.replace("h100-1", "h100-[1-6],evil"),
    FREE.replace("h100-1", "h100-0"),
    FREE.replace("h100-1", "h100-7"),
    FREE.replace("h100-1", "h100-01"),
    FREE.replace("h100-1", "h100-[2-1]"),
    FREE.replace("h100-1", "login-1"),
    FREE.replace("h100-1", "h100-1 NodeHostname=x"),
    FREE.replace("239.192.0.1", "10.0.0.1"),
    FREE.replace("239.192.0.1", "127.0.0.1"),
    FREE.replace("239.192.0.1", "evil.example"),
    FREE.replace("239.192.0.1", "239.192.0.999"),
    FREE.replace("239.192.0.1", "239.192.0.[1-2]"),
    FREE.replace("239.192.0.1", "239.192.0.[9-1]"),
    FREE.replace("State=DOWN", 'State=DOWN Reason="x" PluginDir=y'),
    FREE.replace("State=DOWN", 'State=DOWN Reason="x\\" PluginDir=y"'),
    FREE.replace("State=DOWN", "State=DOWN Reason=$(id)"),
    FREE.replace("State=DOWN", "State=DOWN Gres=gpu:h100:99"),
    FREE.replace("State=DOWN", "State=DOWN Gres=shard:1"),
    FREE.replace("State=DOWN", "State=DOWN Feature=a,,b"),
    "NodeName=h100-1",
    "PartitionName=DEFAULT Nodes=h100-1 State=UP",
    "PartitionName=default Nodes=h100-1 State=UP",
    "PartitionName=admin Nodes=h100-1 State=UP",
    "PartitionName=h100 Nodes=ALL State=UP",
    "PartitionName=h100 Nodes=h100-2 State=UP",
    "PartitionName=h100 Nodes=h100-1 AllowGroups=x State=UP",
    "PartitionName=h100 Nodes=h100-1 Default=YES Default=NO",
    "PartitionName=h100 Nodes=h100-1 State=UP\nPartitionName=h100 Nodes=h100-1 State=UP",
    FREE,
    FREE.replace("h100-1 NodeAddr=239.192.0.1", "h100-[1-2] NodeAddr=239.192.0.[1-2]"),
    "#\x1b[2J",
    "# " + "x" * 1000,
    "",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_lines(line: str) -> None:
    assert refused(f"{FREE}\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "Include /tmp/x",
        "AutoDetect=nvml",
        "Name=gpu File=/dev/nvidia0",
        GPU.replace("h100-1", "h100-2"),
        GPU.replace("h100-1", "DEFAULT"),
        GPU.replace("/dev/nvidia[0-7]", "/dev/mem"),
        GPU.replace("/dev/nvidia[0-7]", "/dev/nvidia[0-7],/dev/sda"),
        GPU.replace("/dev/nvidia[0-7]", "/dev/nvidia../sda"),
        GPU.replace("Name=gpu", "name=gpu"),
        f"{GPU} Flags=x",
        f"{GPU}\\",
        f"{GPU}\nPluginDir=/tmp/x",
        f"{GPU}\n{GPU}",
        f"{GPU}\n{GPU.replace('[0-7]', '8')}",
        "",
    ],
)
def test_hostile_gres_lines(line: str) -> None:
    assert refused(f"{FREE}\n", f"{line}\n")


def test_what_is_too_much() -> None:
    assert refused("#\n" * 600_000)
    assert refused("# x\n" + "NodeName=h100-1 " + "A" * 70_000 + "\n")
    assert refused(FREE, "")
    big = render([PoolLine("h100", "", 10_000, "", 0, 1, 1024)], [], shapes_fixed=False)
    assert refused(big.nodes_conf)
    check(big.nodes_conf, big.gres_conf, Allowed({"h100": 10_000}, frozenset({"h100"})))


def test_the_names_that_the_settings_allow() -> None:
    text = b'[pools.h100]\nmax_nodes = 6\npartition = "gpu"\n[pools.cpu]\n[pools.Bad]\n[pools.x]\nmax_nodes = "many"\n'
    assert allowed_by(text) == Allowed({"h100": 6, "cpu": 8, "x": 8}, frozenset({"gpu", "cpu", "x"}))
    for odd in (b"", b"[pools", b"pools = 1", b"\xff", b"[pools]\nh100 = 1\n"):
        assert allowed_by(odd) == Allowed()
    one, other = Allowed({"a": 1, "b": 5}, frozenset({"a"})), Allowed({"a": 3}, frozenset({"c"}))
    assert one | other == Allowed({"a": 3, "b": 5}, frozenset({"a", "c"}))


def test_each_written_line_is_one_that_is_taken() -> None:
    made = render([H100], [NODE], shapes_fixed=True)
    assert check(made.nodes_conf, made.gres_conf, ALLOWED).pools == {"h100": 6}
