"""What a pod of the sandbox is made of: its command line, environment, limits and NAT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.node.meshd_node.pod import BUILT
from deploy.sandbox import nat, pod_layer, pods
from deploy.sandbox.cgroup import groups_of, hierarchies
from deploy.sandbox.container import CAPABILITIES
from deploy.sandbox.hypervisor import MachineSpec, Pod
from deploy.sandbox.images import MachineImage

IMAGE = MachineImage("some-pod", (), entrypoint=("/entry", "--"), command=("sleep", "infinity"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", ["sleep", "infinity"]),
        ("bash -c 'echo a  b; true' \"x y\" z", ["bash", "-c", "echo a  b; true", "x y", "z"]),
        ("one\\ word 'it'\"'\"'s' $HOME *", ["one word", "it's", "$HOME", "*"]),
    ],
)
def test_arguments_are_split_as_by_a_shell_and_follow_the_entrypoint(args: str, words: list[str]) -> None:
    assert pods.first_command(Pod(args=args), IMAGE) == ["/entry", "--", *words]


def test_an_open_quote_and_nothing_to_run_are_refused() -> None:
    with pytest.raises(ValueError, match="quotation"):
        pods.first_command(Pod(args="sh -c 'open"), IMAGE)
    with pytest.raises(ValueError, match="no entrypoint"):
        pods.first_command(Pod(), MachineImage("empty", ()))


def test_a_pod_is_an_ordinary_container(tmp_path: Path) -> None:
    pod = Pod(args="run", env={"KEY": "a=b"}, cpus=2.5, memory_mib=100, address_variable="RUNPOD_PUBLIC_IP")
    spec = MachineSpec(name="pod-1", user_data="", gpus=2, missing_gpus=1, pod=pod)
    place = pods.Place(tmp_path, Path("/run/netns/x"), "10.77.0.9", "group/pod-1")
    pods.lay_out(spec, IMAGE, place, [(Path("/host/file"), "/in/it", False)])

    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600
    config = json.loads((tmp_path / "config.json").read_text())
    process, linux = config["process"], config["linux"]
    assert process["args"] == ["/entry", "--", "run"]
    assert {"KEY=a=b", "RUNPOD_PUBLIC_IP=10.77.0.9", "HOSTNAME=pod-1", "HOME=/root"} < set(process["env"])
    assert process["noNewPrivileges"] is False
    for kind in ("bounding", "effective", "permitted"):
        assert process["capabilities"][kind] == list(CAPABILITIES)
    assert not {"CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYS_PTRACE"} & set(CAPABILITIES)
    assert linux["resources"]["memory"] == {"limit": 100 * 1024 * 1024}
    assert linux["resources"]["cpu"] == {"period": 100_000, "quota": 250_000}
    assert [(device["path"], device["fileMode"]) for device in linux["devices"]] == [
        ("/dev/nvidia0", 0o666), ("/dev/nvidiactl", 0o666),
    ]  # fmt: skip
    assert {"type": "network", "path": "/run/netns/x"} in linux["namespaces"]
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    assert "ro" in mounts["/sys"]["options"]
    assert "ro" in mounts["/sys/fs/cgroup"]["options"]
    assert {name for name in mounts if name.startswith("/etc/")} == {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
    assert "ro" in mounts["/in/it"]["options"]
    assert (tmp_path / "files/hostname").read_text() == "pod-1\n"


def test_only_mapped_ports_come_in() -> None:
    rules = nat.rules({10022: 22, 18888: 8888})
    assert "tcp dport 10022 dnat to 172.17.0.2:22" in rules
    assert "tcp dport 18888 dnat to 172.17.0.2:8888" in rules
    assert rules.count("policy drop") == 2
    assert "dport" not in nat.rules({})
    assert "masquerade fully-random" in nat.rules({}, hard=True)
    assert "random" not in nat.rules({})


def test_a_pods_groups_are_looked_for_in_all_hierarchies(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "30 20 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "31 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 20 0:28 / /proc rw - proc proc rw\n"
    )
    assert hierarchies(info) == [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified")]
    assert groups_of("neverwas") == []


def test_our_image_has_what_the_dockerfile_copies() -> None:
    dockerfile = (Path(pod_layer.__file__).parents[1] / "container/Dockerfile").read_text()
    copies = [line.split()[1:] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    into = {source for *sources, target in copies if target.startswith("/usr/lib/meshd/pod") for source in sources}
    assert {
        source.removeprefix("deploy/container/") for source in into if source.startswith("deploy/")
    } == pod_layer.COPIED
    built = {Path(source) for source in into if source.startswith("/build/")}
    assert {(path.parent.name, path.name) for path in built} == {
        (folder, name) for folder, names in BUILT.items() for name in names
    }
    assert f'ENTRYPOINT ["/{pod_layer.FILES}/entrypoint"]' in dockerfile
