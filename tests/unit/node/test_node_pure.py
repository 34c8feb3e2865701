"""Parsers, hosts block, admission, throttle, accounts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from deploy.node.meshd_node import gpu, hostname, hosts, own_names, parse, processes, root_path, users
from deploy.node.meshd_node import main as node_main
from deploy.node.meshd_node.deadman import DeadMan
from deploy.node.meshd_node.errors import NotPossible
from deploy.node.meshd_node.paths import Paths
from meshd.api.node_throttle import Throttle
from meshd.codes import JoinCode
from meshd.errors import JoinRefused
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.plan.admission import CLOCK_CURE, POD_CLOCK_CURE, check_facts, check_same, release, slurmd_window
from meshd.runtime import hostsfile
from meshd.runtime import root_path as heads_root_path

FIXTURES = Path(__file__).resolve().parents[3] / "deploy/sandbox/fixtures/nvidia-smi/h100"
FACTS = NodeFacts(
    shape=NodeShape(16, 1, 1, 8, 2, 128000),
    gpus=tuple(GpuFact(n, "NVIDIA H100 80GB HBM3", f"GPU-{n}", 81559, f"/dev/nvidia{n}") for n in range(8)),
    slurmd_version="24.11.5", tailscale_version="1.102.5", agent_version="0.1.0", os="Debian", arch="x86_64",
    clock_skew_s=0.2,
)  # fmt: skip


def admit(facts: NodeFacts = FACTS, **changes: object) -> None:
    wanted = {"gpus_rented": 8, "gpu_model": "h100-sxm", "slurmctld_version": "24.11.5", "clock_skew_max_s": 120.0}
    check_facts(facts, **{**wanted, **changes})  # type: ignore[arg-type]


def test_a_good_machine_is_accepted() -> None:
    admit()
    admit(replace(FACTS, gpus=()), gpus_rented=0, gpu_model="")


@pytest.mark.parametrize(
    ("facts", "code", "fatal"),
    [
        (replace(FACTS, clock_skew_s=310.0), JoinCode.CLOCK_SKEW, False),
        (replace(FACTS, clock_skew_s=-310.0), JoinCode.CLOCK_SKEW, False),
        (replace(FACTS, slurmd_version=""), JoinCode.SLURMD_MISSING, True),
        (replace(FACTS, slurmd_version="25.05.1"), JoinCode.SLURMD_VERSION, True),
        (replace(FACTS, slurmd_version="22.05.8"), JoinCode.SLURMD_VERSION, True),
        (replace(FACTS, gpus=FACTS.gpus[:7]), JoinCode.GPUS_MISSING, True),
        (replace(FACTS, gpus=(replace(FACTS.gpus[0], device=""), *FACTS.gpus[1:])), JoinCode.GPUS_FAULTY, True),
        (
            replace(FACTS, gpus=(replace(FACTS.gpus[0], name="NVIDIA H100 PCIe"), *FACTS.gpus[1:])),
            JoinCode.GPU_MODEL,
            True,
        ),
        (replace(FACTS, shape=NodeShape(0, 0, 0, 0, 0, 0)), JoinCode.NO_HARDWARE, True),
        (replace(FACTS, shape=replace(FACTS.shape, boards=0)), JoinCode.NO_HARDWARE, True),
        (replace(FACTS, shape=NodeShape(10**9, 1, 1, 10**9, 1, 10**9)), JoinCode.NO_HARDWARE, True),
        (
            replace(FACTS, gpus=(*FACTS.gpus[:7], replace(FACTS.gpus[7], device="/dev/nvidia0"))),
            JoinCode.GPUS_FAULTY,
            True,
        ),
        (replace(FACTS, gpus=(*FACTS.gpus[:7], replace(FACTS.gpus[7], device="/dev/mem"))), JoinCode.GPUS_FAULTY, True),
    ],
)
def test_refusals_say_why(facts: NodeFacts, code: JoinCode, *, fatal: bool) -> None:
    with pytest.raises(JoinRefused) as caught:
        admit(facts)
    assert (caught.value.code, caught.value.fatal) == (code, fatal)
    assert caught.value.cure


@pytest.mark.parametrize(("systemd", "cure"), [(None, CLOCK_CURE), (True, CLOCK_CURE), (False, POD_CLOCK_CURE)])
def test_nobody_is_told_to_set_the_clock_of_a_pod(systemd: bool | None, cure: str) -> None:
    with pytest.raises(JoinRefused) as caught:
        admit(replace(FACTS, clock_skew_s=600.0, systemd=systemd))
    assert caught.value.cure == cure


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (replace(FACTS, agent_version="0.2.0", clock_skew_s=1.0, os="Debian 14"), True),
        (replace(FACTS, shape=replace(FACTS.shape, memory_mib=127000)), True),
        (replace(FACTS, gpus=(*FACTS.gpus, replace(FACTS.gpus[0], index=9, device=""))), True),
        (replace(FACTS, shape=replace(FACTS.shape, memory_mib=64000)), False),
        (replace(FACTS, shape=NodeShape(8, 1, 1, 8, 1, 128000)), False),
        (replace(FACTS, shape=replace(FACTS.shape, boards=0)), False),
        (replace(FACTS, gpus=FACTS.gpus[1:]), False),
        (replace(FACTS, gpus=(replace(FACTS.gpus[0], device=""), *FACTS.gpus[1:])), False),
    ],
)
def test_a_machine_that_slurm_has_stays_what_it_was(now: NodeFacts, *, same: bool) -> None:
    refusal = None
    try:
        check_same(now, FACTS, gpus_rented=8, memory_fraction=0.95)
    except JoinRefused as error:
        refusal = error
    assert (refusal is None) is same
    assert refusal is None or (not refusal.fatal and refusal.cure)


@pytest.mark.parametrize(
    ("slurmctld", "oldest", "newest"),
    [
        ("22.05.8", (20, 11), (22, 5)), ("23.11.4", (22, 5), (23, 11)), ("24.11.5", (23, 2), (24, 11)),
        ("25.05.0", (23, 11), (25, 5)),
    ],
)  # fmt: skip
def test_the_window(slurmctld: str, oldest: tuple[int, int], newest: tuple[int, int]) -> None:
    assert slurmd_window(slurmctld) == (oldest, newest)


def test_versions() -> None:
    assert release("24.11.5") == (24, 11)
    assert release("24.11.0-0rc1") == (24, 11)
    assert release("master") is None
    assert slurmd_window("") is None
    admit(slurmctld_version="")


def test_slurmd_c() -> None:
    text = (
        "NodeName=x1 CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=128000\n"
        "UpTime=0-00:10:00\n"
    )
    assert parse.slurmd_c(text) == {
        "cpus": 16, "boards": 1, "sockets_per_board": 1, "cores_per_socket": 8, "threads_per_core": 2,
        "memory_mib": 128000,
    }  # fmt: skip
    newer = "NodeName=x CPUs=2 Boards=1 SocketsPerBoard=2 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=7941 Gres=g:1\n"
    assert parse.slurmd_c("slurmd: warning\n" + newer)["sockets_per_board"] == 2
    with pytest.raises(NotPossible, match="CPUs"):
        parse.slurmd_c("slurmd: error: cannot")


def test_nvidia_smi() -> None:
    row = (FIXTURES / "smi_query.csv").read_text().split(", ")
    assert parse.gpus(", ".join(row[:4]) + "\n") == [
        {"index": 0, "uuid": row[1], "name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}
    ]
    assert parse.gpus("No devices were found\n") == []
    assert parse.gpus("0, [GPU is lost], x, [N/A]\n") == []
    assert parse.gpu_load("0, 37, 1024\n1, [N/A], 3\n") == [
        {"index": 0, "utilization_percent": 37, "memory_used_mib": 1024},
        {"index": 1, "utilization_percent": 0, "memory_used_mib": 3},
    ]
    assert parse.gpu_minor("Model: x\nGPU UUID:\t GPU-1\nDevice Minor: \t 3\n") == ("GPU-1", 3)
    assert parse.gpu_minor("Model: x\n") is None


WORDS = Path(__file__).parent / "nvidia_smi"
"""What nvidia-smi prints for the query when GPUs are ill, as in public reports."""


@pytest.mark.parametrize(
    ("name", "good", "told"),
    [
        ("healthy", [0, 1, 2, 3], ()),
        ("one_of_four", [0], ("1, GPU-a1", "[GPU requires reset]", "[Unknown Error]", "[GPU is lost]")),
        ("err", [0], ("ERR!",)),
        ("name_unknown", [0], ("1, GPU-a1, [Unknown Error]",)),
        ("uuid_lost", [0], ("1, [GPU is lost]",)),
        ("index_error", [0], ("[Unknown Error], GPU-a1",)),
        ("no_memory", [0], ("1, GPU-a1", "2, GPU-a2", "3, GPU-a3")),
        ("mig", [0], ("MIG-b0",)),
        ("partial", [0, 1], ("2, GPU-a2, NVIDIA H1",)),
        ("none", [], ("No devices were found",)),
        ("no_driver", [], ("couldn't communicate with the NVIDIA driver",)),
        ("mismatch", [], ("Driver/library version mismatch",)),
        ("handle", [], ("0000:3B:00.0",)),
        ("handle_lost", [0], ("GPU is lost",)),
    ],
)
def test_a_line_about_a_gpu_that_is_ill_is_no_gpu_and_its_words_are_kept(
    name: str, good: list[int], told: tuple[str, ...]
) -> None:
    text = (WORDS / f"{name}.txt").read_text()
    found = parse.gpus(text)
    assert [one["index"] for one in found] == good
    fault = parse.gpu_fault(text)
    assert bool(fault) is bool(told)
    assert all(words in fault for words in told)
    assert all(one["uuid"] not in fault for one in found)
    assert all(one["memory_mib"] == 81559 for one in found)
    assert {path.stem for path in WORDS.glob("*.txt")} >= {name}
    facts = replace(
        FACTS,
        gpus=tuple(GpuFact(**one, device=f"/dev/nvidia{one['index']}") for one in found), gpu_fault=fault,
    )  # fmt: skip
    admit(facts, gpus_rented=len(good))
    with pytest.raises(JoinRefused) as caught:
        admit(facts, gpus_rented=len(good) + 1)
    assert caught.value.fatal
    assert all(words in caught.value.reason for words in told)


def test_what_nvidia_smi_says_of_itself_is_kept_and_bounded() -> None:
    assert parse.gpu_fault("", "a\nb\na\n", 9) == "a; b"
    assert "255" in parse.gpu_fault("", "", 255)
    assert len(parse.gpu_fault("x" * 10_000)) <= 400
    assert parse.gpu_fault("") == "", "a machine without GPUs"
    assert parse.load_fault("0, 37, 1024\n1, [N/A], [N/A]\n2, [Not Supported], 3\n") == "", "MIG tells no load"
    ill = "0, 37, 1024\n1, [GPU is lost], [GPU is lost]\n2, ERR!, 5\nUnable to determine the device handle\n"
    assert [one["index"] for one in parse.gpu_load(ill)] == [0]
    for words in ("1, [GPU is lost]", "ERR!", "device handle"):
        assert words in parse.load_fault(ill)


def test_a_gpu_without_memory_of_an_older_agent_does_not_count() -> None:
    facts = replace(FACTS, gpus=(*FACTS.gpus[:7], replace(FACTS.gpus[7], memory_mib=0)))
    with pytest.raises(JoinRefused):
        admit(facts)


def test_small_parsers() -> None:
    assert parse.version("slurm 24.11.5") == "24.11.5"
    assert parse.version("slurm-wlm 22.05.8") == "22.05.8"
    assert parse.version("1.102.5\n  tailscale commit: 12ab") == "1.102.5"
    assert parse.version("none") == ""
    assert parse.step_job("slurmstepd: [12.batch]") == "12"
    assert parse.os_name('NAME=x\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n') == "Debian GNU/Linux 13 (trixie)"


def test_hosts_block() -> None:
    old = "127.0.0.1 localhost\n# BEGIN meshd\n100.64.0.9\told\n# END meshd\n::1 ip6\n"
    new = hosts.with_block(old, {"b-2": "100.64.0.2", "a-1": "100.64.0.1", "bad name": "1.1.1.1", "c": "nonsense"})
    assert new == ("127.0.0.1 localhost\n# BEGIN meshd\n100.64.0.1\ta-1\n100.64.0.2\tb-2\n# END meshd\n::1 ip6\n")
    assert hosts.read_block(new) == {"a-1": "100.64.0.1", "b-2": "100.64.0.2"}
    assert hosts.with_block("x", {"a": "100.64.0.1"}) == "x\n# BEGIN meshd\n100.64.0.1\ta\n# END meshd\n"
    assert hosts.with_block(new, {}) == "127.0.0.1 localhost\n::1 ip6\n", "no names, no block"
    assert hosts.with_block("x", {}) == "x"
    assert hosts.with_block("", {"a": "100.64.0.1"}).startswith("# BEGIN meshd\n")
    cut = "a\n# BEGIN meshd\nmine 1\n"
    assert "mine 1\n" in hosts.with_block(cut, {}), "without an END nothing after BEGIN is known to be ours"


def test_hosts_block_leaves_names_that_others_gave() -> None:
    old = "127.0.1.1 Head.example head # the machine itself\n"
    new = hosts.with_block(old, {"head": "100.64.0.1", "machine": "100.64.0.3", "a-1": "100.64.0.2"})
    assert hosts.read_block(new) == {"a-1": "100.64.0.2", "machine": "100.64.0.3"}
    assert hosts.read_block(old) == hosts.read_block("# BEGIN meshd\n100.64.0.2 a-1\n") == {}


def test_nothing_else_says_what_the_nodes_own_name_means() -> None:
    old = (
        "127.0.0.1 localhost h100-1\n127.0.1.1\th100-1.local h100-1 # Debian\n::1 ip6-localhost H100-1\n"
        "# 127.0.1.1 h100-1\n10.0.0.5 h100-1 gpu\n10.0.0.6 h100-2\n127.0.1.1 h100-2 head\n127.0.1.1 other\n"
    )
    names = {"h100-1": "100.64.0.1", "h100-2": "100.64.0.2", "head": "100.64.0.9", "localhost": "100.64.0.9"}
    new = own_names.without_own(old, "h100-1", names)
    assert new == (
        "127.0.0.1 localhost\n127.0.1.1 h100-1.local\n::1 ip6-localhost\n# 127.0.1.1 h100-1\n10.0.0.5 gpu\n"
        "10.0.0.6 h100-2\n127.0.1.1 other\n"
    )
    block = hosts.with_block(new, names)
    assert own_names.without_own(block, "h100-1", names) == block
    assert "100.64.0.1\th100-1\n" in block
    assert own_names.without_own(old, "", {}) == old


@pytest.mark.parametrize(("own", "heads"), [(hosts, hostsfile), (root_path, heads_root_path)])
def test_head_and_nodes_have_the_same_rules(own: ModuleType, heads: ModuleType) -> None:
    assert own.__file__ and heads.__file__
    assert Path(own.__file__).read_bytes() == Path(heads.__file__).read_bytes()


def test_host_name(tmp_path: Path) -> None:
    names = ["ip-10-0-3-7"]
    paths = Paths(tmp_path)
    paths.hostname.parent.mkdir()
    paths.hostname.write_text("ip-10-0-3-7\n")
    real = hostname.HostName(paths)
    assert real.keep("h100-1")
    assert paths.hostname.read_text() == "h100-1\n"

    paths.root = Path("/")  # the machine itself
    name = hostname.HostName(paths, True, lambda: names[-1], names.append)
    assert name.keep("h100-1")
    assert name.keep("h100-1")
    assert names == ["ip-10-0-3-7", "h100-1"]
    names.append("ip-10-0-3-7")  # a cloud's agent puts its own back
    assert name.keep("h100-1")
    assert names[-1] == "h100-1"


def test_a_container_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    paths = Paths(tmp_path)
    paths.root = Path("/")
    name = hostname.HostName(paths, True, lambda: "4f1c2d", refuse)
    assert not name.keep("h100-1")
    assert not name.keep("h100-1")
    assert capsys.readouterr().err.count("cannot be named h100-1: Operation not permitted") == 1
    assert not paths.hostname.exists()


def test_without_tun_libmeshnet_shows_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    paths = Paths(tmp_path)
    paths.root = Path("/")
    name = hostname.HostName(paths, False, lambda: "4f1c2d", refuse)
    assert name.keep("h100-1")
    assert name.keep("h100-2")
    assert (paths.hostname.read_text(), paths.meshnet_hostname.read_text()) == ("h100-2\n", "h100-2\n")
    assert capsys.readouterr().err == ""


def test_processes(tmp_path: Path) -> None:
    for pid, comm, title in (
        ("1", "systemd", ""), ("20", "slurmd", ""), ("30", "slurmstepd", "slurmstepd: [12.batch]"),
        ("31", "slurmstepd", "slurmstepd: [12.0]"), ("32", "slurmstepd", "slurmstepd: [13.extern]"),
        ("33", "slurmstepd", "/usr/sbin/slurmstepd infinity"),
    ):  # fmt: skip
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(comm + "\n")
        (tmp_path / pid / "cmdline").write_text(title)
    running = processes.look(tmp_path)
    assert running.jobs == {"12", "13"}
    assert running.slurmd
    assert not running.munged


def test_gpu_devices_are_opened(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o600)
    assert gpu.open_devices(tmp_path) == ["nvidia0", "nvidiactl", "nvidia-uvm"]
    assert gpu.open_devices(tmp_path) == []
    assert (tmp_path / "nvidia-modeset").stat().st_mode & 0o777 == 0o600


def test_dead_man() -> None:
    now = 0.0
    switch = DeadMan(10.0, lambda: now)
    now = 9.0
    assert switch.left_s() == 1.0
    switch.contact()
    assert switch.left_s() == 10.0
    now = 30.0
    assert switch.left_s() == 0.0
    assert DeadMan(0.0, lambda: now).left_s() == float("inf")


def test_throttle() -> None:
    throttle = Throttle(burst=2, every_s=6.0, addresses_max=2)
    assert throttle.wait_s("a", 0.0) == 0
    throttle.wrong("a", 0.0)
    assert throttle.wait_s("a", 0.0) == 0
    throttle.wrong("a", 0.0)
    assert 0 < throttle.wait_s("a", 0.0) <= 6
    assert throttle.wait_s("b", 0.0) == 0
    assert throttle.wait_s("a", 7.0) == 0
    for name in "abc":
        throttle.wrong(name, 0.0)
        throttle.wrong(name, 0.0)
    assert throttle.wait_s("a", 0.0) == 0, "the oldest is forgotten"


def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Paths, Path]:
    paths = Paths(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "bin").mkdir()
    paths.passwd.write_text("root:x:0:0::/:\nmunge:x:105:110::/:\nother:x:64030:64030::/:\n")
    paths.group.write_text("munge:x:110:\nother:x:64030:\n")
    for name in ("useradd", "usermod", "groupadd", "groupmod"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return paths, tmp_path / "calls"


def test_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, calls = accounts(tmp_path, monkeypatch)
    assert not users.align(paths, users.Account("munge", 105, 110), [])
    assert users.align(paths, users.Account("munge", 901, 902), [tmp_path / "nothing"])
    assert calls.read_text().splitlines() == ["groupmod -g 902 munge", "usermod -u 901 -g 902 munge"]
    calls.unlink()
    assert users.align(paths, users.Account("slurm", 64031, 64031), [])
    assert calls.read_text().splitlines()[0] == "groupadd --system -g 64031 slurm"
    assert calls.read_text().splitlines()[1].endswith("-u 64031 -g 64031 slurm")
    with pytest.raises(NotPossible, match="64030"):
        users.align(paths, users.Account("slurm", 64030, 64031), [])
    with pytest.raises(NotPossible, match="group slurm"):
        users.align(paths, users.Account("slurm", 64031, 64030), [])


def test_install_writes_units_and_starts_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/munge.service").symlink_to("/dev/null")
    calls = tmp_path / "calls"
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\n'
        f'[ "$1" = daemon-reload ] || [ -e {tmp_path}/known ] || '
        f'{{ touch {tmp_path}/known; echo "Unit not found." >&2; exit 5; }}\n'
    )
    systemctl.chmod(0o755)
    argv = ["--root", str(tmp_path), "--systemctl", str(systemctl), "install"]
    assert node_main.main(argv) == 0
    start = "--no-block restart meshd-node.service"
    assert calls.read_text().splitlines() == ["daemon-reload", start, "daemon-reload", start]
    units = tmp_path / "etc/systemd/system"
    assert (units / "multi-user.target.wants/meshd-node.service").is_symlink()
    assert not (units / "munge.service").is_symlink()
    assert "KillMode=process" in (units / "meshd-slurmd.service").read_text()
    calls.unlink()
    assert node_main.main(argv) == 0
    assert calls.read_text().splitlines() == [start]
