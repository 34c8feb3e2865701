"""The agent without systemd or without a TUN device: services of s6, limits of a container, libmeshnet, the proxy."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.node.meshd_node import commands, handshake, kind, limits, meshnet, pod, processes, services
from deploy.node.meshd_node.errors import HeadUnreachable, NotPossible, ToolFailed
from deploy.node.meshd_node.headlink import HeadLink
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.services import S6Service
from deploy.node.meshd_node.sockets import other_end_uid, uid_in
from deploy.node.meshd_node.tailscale import Tailscale
from meshd.bootstrap import assets
from tests.unit.node.standins import House, program, until
from tests.unit.node.tailscaled import Tailscaled

HOST = {
    "cpus": 128, "boards": 1, "sockets_per_board": 2, "cores_per_socket": 32, "threads_per_core": 2,
    "memory_mib": 1031000,
}  # fmt: skip
SMALL = {"cpus": 16, "boards": 1, "sockets_per_board": 1, "cores_per_socket": 16, "threads_per_core": 1}
NO_LIMIT_V1 = "9223372036854771712"


def lay(root: Path, **files: str) -> Paths:
    """A machine with these files: the names have __ for /."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Paths(root, root / "proc")


@pytest.mark.parametrize(
    ("files", "affinity", "wanted"),
    [
        ({}, 128, HOST),
        ({"proc__self__cgroup": "0::/\n"}, 128, HOST),
        (
            {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "1650000 100000\n",
             "sys__fs__cgroup__memory.max": "67108864000\n"},
            128, {**SMALL, "memory_mib": 64000},
        ),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "max 100000\n",
          "sys__fs__cgroup__memory.max": "max\n"}, 128, HOST),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "50000 100000\n"}, 128,
         {**HOST, "cpus": 1, "boards": 1, "sockets_per_board": 1, "cores_per_socket": 1, "threads_per_core": 1}),
        ({}, 16, {**HOST, **SMALL}),
        # the path is the host's, as where a container has its own groups mounted at the top
        (
            {"proc__self__cgroup": "4:cpu,cpuacct:/docker/4f1c\n9:memory:/docker/4f1c\n",
             "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "1600000\n",
             "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
             "sys__fs__cgroup__memory__memory.limit_in_bytes": "67108864000\n"},
            128, {**SMALL, "memory_mib": 64000},
        ),
        (
            {"proc__self__cgroup": "4:cpu,cpuacct:/\n9:memory:/\n", "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n",
             "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
             "sys__fs__cgroup__memory__memory.limit_in_bytes": NO_LIMIT_V1},
            128, HOST,
        ),
        # the limit of a group above
        ({"proc__self__cgroup": "0::/pod/services\n", "sys__fs__cgroup__pod__memory.max": "1048576000\n",
          "sys__fs__cgroup__pod__services__memory.max": "max\n"}, 128, {**HOST, "memory_mib": 1000}),
        ({"proc__self__cgroup": "nonsense\n0::/../..\n", "sys__fs__cgroup__cpu.max": "x y\n"}, 128, HOST),
    ],
)  # fmt: skip
def test_a_container_promises_what_it_has(
    tmp_path: Path, files: dict[str, str], affinity: int, wanted: dict[str, int]
) -> None:
    assert limits.limited(HOST, lay(tmp_path, **files), lambda: affinity) == wanted


LIBRARY = "/usr/lib/meshd/pod/libmeshnet.so"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{LIBRARY}\n"),
        ("/lib/other.so\n", f"/lib/other.so\n{LIBRARY}\n"),
        ("/lib/a.so:/lib/b.so  # keep\n\n", f"/lib/a.so:/lib/b.so  # keep\n\n{LIBRARY}\n"),
        (f"# {LIBRARY}\n", f"# {LIBRARY}\n{LIBRARY}\n"),
    ],
)
def test_the_library_is_added_and_taken_away_beside_others(before: str, after: str) -> None:
    assert meshnet.preloaded(before, LIBRARY, wanted=True) == after
    assert meshnet.preloaded(after, LIBRARY, wanted=True) == after, "once"
    assert meshnet.preloaded(after, LIBRARY, wanted=False) == before
    assert meshnet.preloaded(before, LIBRARY, wanted=False) == before


def test_it_leaves_a_line_that_it_shares() -> None:
    assert meshnet.preloaded(f"/a.so:{LIBRARY} /b.so # x\n", LIBRARY, wanted=False) == "/a.so /b.so# x\n"


def test_a_machine_that_gets_a_tun_device_loads_it_no_longer(tmp_path: Path) -> None:
    paths = lay(tmp_path)
    library = paths.pod / "libmeshnet.so"
    paths.preload.parent.mkdir()
    paths.preload.write_text(f"/lib/other.so\n{library}\n")
    meshnet.prepare(Node(paths, tun=True))
    assert paths.preload.read_text() == "/lib/other.so\n"


def make_sources(paths: Paths) -> None:
    """Sources whose compilation is quick, where the archive has them."""
    source = paths.root / "opt/meshd-node/lib/pod"
    for place, names in pod.BUILT.items():
        (source / place).mkdir(parents=True)
        rules = "".join(f"{name}:\n\tcp {sys.executable if name == 'meshnetd' else 'x.c'} $@\n" for name in names)
        (source / place / "Makefile").write_text(rules)
        (source / place / "x.c").write_text("text\n")
    (source / "service/slurmd").mkdir(parents=True)
    (source / "service/slurmd/run").write_text("#!/bin/sh\n")
    (source / "entrypoint").write_text("#!/bin/sh\n")


def test_on_a_foreign_image_the_agent_lays_out_the_files_and_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opt/meshd-node/lib").mkdir(parents=True)
    paths = lay(tmp_path, usr__include__stdlib_h="")
    (tmp_path / "usr/include/stdlib.h").touch()
    make_sources(paths)
    pod.build(paths)
    modes = {
        path: (paths.pod / path).stat().st_mode & 0o777 for path in ("entrypoint", "service/slurmd/run", "meshnetd")
    }
    assert modes == dict.fromkeys(modes, 0o755)
    assert (paths.pod / "meshnet/x.c").stat().st_mode & 0o777 == 0o644
    assert (paths.pod / "libmeshnet.so").read_text() == (paths.pod / "libslurmconf.so").read_text() == "text\n"
    # an image's own files are left alone, and nothing is compiled again
    (paths.pod / "entrypoint").write_text("the image's")
    (paths.pod / "meshnet/Makefile").unlink()
    pod.build(paths)
    assert (paths.pod / "entrypoint").read_text() == "the image's"
    (paths.pod / "meshnetd").unlink()
    with pytest.raises(NotPossible):
        pod.build(paths)


def test_a_compiler_is_installed_only_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opt/meshd-node/lib").mkdir(parents=True)
    paths = lay(tmp_path)
    make_sources(paths)
    wanted: list[list[str]] = []
    monkeypatch.setattr(pod, "ensure", lambda _paths, names, _report: wanted.append(list(names)))
    pod.build(paths)
    assert wanted == [["libc6-dev"]], "this machine has cc and make, and its root has no header"


def test_the_agents_archive_has_a_pods_files() -> None:
    names = set(zipfile.ZipFile(io.BytesIO(assets.agent_zipapp())).namelist())
    services_ = {
        f"pod/service/{name}/run" for name in ("tailscaled", "meshnetd", "munged", "slurmd", "meshd-node", "start")
    }
    assert {"pod/entrypoint", "pod/stop", "pod/log", "pod/has-tun", *services_} <= names
    assert not [name for name in names if name.endswith((".so", ".o", "meshnetd", "Dockerfile"))]


def test_a_library_that_does_not_load_is_not_named(tmp_path: Path) -> None:
    broken = tmp_path / "libmeshnet.so"
    broken.write_text("no library")
    with pytest.raises(NotPossible):
        meshnet._check_loads(str(broken))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_file_that_is_a_mount_point_is_written_in_place(tmp_path: Path) -> None:
    """As /etc/hosts and /etc/hostname of a container are: a rename over them fails."""
    (tmp_path / "outside").write_text("127.0.0.1 localhost\n" * 40)
    (tmp_path / "hosts").touch()
    inode = (tmp_path / "outside").stat().st_ino
    script = (
        "import sys; sys.path.insert(0, 'deploy/node'); from pathlib import Path\n"
        "from meshd_node.files import write_file\n"
        f"write_file(Path({str(tmp_path / 'hosts')!r}), b'::1 localhost')\n"
    )
    mount = f'mount --bind {tmp_path}/outside {tmp_path}/hosts && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", sys.executable, "-c", script]
    subprocess.run(argv, check=True, timeout=30)
    assert (tmp_path / "outside").read_text() == "::1 localhost"
    assert (tmp_path / "outside").stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts", "outside"], "no temporary file is left"


@pytest.mark.parametrize(
    ("caps", "device", "tun"),
    [("00000000a80425fb", True, False), ("000001ffffffffff", True, True), ("000001ffffffffff", False, False),
     ("", True, False)],
)  # fmt: skip
def test_a_tun_device_needs_the_device_and_the_capability(tmp_path: Path, caps: str, device: bool, tun: bool) -> None:
    paths = lay(tmp_path, proc__self__status=f"Name:\tx\nCapEff:\t{caps}\n")
    (tmp_path / "dev/net").mkdir(parents=True)
    if device:
        paths.tun.symlink_to("/dev/null")  # any character device that opens
    assert kind.has_tun(paths) is tun
    paths.tailscale_interface.mkdir(parents=True)
    assert kind.has_tun(paths), "tailscaled has made one"


def test_a_containers_start_is_its_boot(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"1 (s6-svscan) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {1000 * ticks} 1 1\n"
    paths = lay(tmp_path, proc__uptime="1060.5 2000.0\n", proc__1__stat=stat)
    assert processes.container_boot(paths.proc, "b-1") == (f"b-1-{1000 * ticks}", 60.5)
    (tmp_path / "proc/1/stat").unlink()
    assert processes.container_boot(paths.proc, "b-1") == ("b-1", 1060.5)


def test_logs_of_a_pod(tmp_path: Path) -> None:
    paths = lay(
        tmp_path,
        var__log__meshd_pod__slurmd__current="3\n4\n",
        var__log__slurm__slurmd_log="s\n",
    )
    (tmp_path / "var/log/meshd_pod").rename(paths.pod_logs)
    (paths.pod_logs / "slurmd/@4000000065.s").write_text("1\n2\n")
    (paths.pod_logs / "munged").mkdir()
    (paths.pod_logs / "munged/current").write_text("m\n")
    node = Node(paths, tun=False)
    found = commands.VERBS["collect_logs"](node, {"lines": 3})["logs"]
    assert found["slurmd"] == "2\n3\n4"
    assert found["munged"] == "m"
    assert commands.VERBS["collect_logs"](node, {"parts": ["slurmd"]})["logs"].keys() == {"slurmd"}


# -- the proxy --------------------------------------------------------------------------------------------------------


class Proxy(threading.Thread):
    """An HTTP proxy for one connection at a time: writes down whereto, and connects to one port of this machine."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.asked: list[str] = []
        self.heard = ""
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = self._listener.getsockname()[:2]

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        self.heard += head.decode()
        self.asked.append(head.decode().splitlines()[0])
        try:
            server = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            client.close()
            return
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        self._copy(client, server)
        back.join()
        client.close()
        server.close()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.heard += data.decode("utf-8", "replace")
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy(house: House) -> Iterator[Proxy]:
    found = Proxy(house.port)
    found.start()
    yield found
    found.close()


async def test_the_head_is_reached_through_the_proxy(house: House, proxy: Proxy) -> None:

    link = HeadLink(["100.64.0.1"], 7677, proxy.place)
    for _ in range(2):
        assert abs(await asyncio.to_thread(link.clock_skew_s)) < 5
    link.close()
    assert proxy.asked == ["CONNECT 100.64.0.1:7677 HTTP/1.0"] or proxy.asked == ["CONNECT 100.64.0.1:7677 HTTP/1.1"]
    link = HeadLink(["fd7a:115c:a1e0::1"], 7677, proxy.place)
    await asyncio.to_thread(link.clock_skew_s)
    link.close()
    assert proxy.asked[-1].startswith("CONNECT [fd7a:115c:a1e0::1]:7677 ")


def test_a_proxy_that_reaches_no_head_is_a_head_that_does_not_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = Proxy(free.getsockname()[1])
        dead.start()
        with pytest.raises(HeadUnreachable):
            HeadLink(["100.64.0.1"], 7677, dead.place).call("GET", "/v1/time")
        dead.close()
        with pytest.raises(HeadUnreachable):
            HeadLink(["100.64.0.1"], 7677, dead.place).call("GET", "/v1/time")


async def test_a_proxy_of_another_user_gets_no_token(house: House, proxy: Proxy) -> None:
    """Any user may listen on the proxy's port while tailscaled starts again."""
    link = HeadLink(["100.64.0.1"], 7677, proxy.place, os.geteuid() + 1)
    with pytest.raises(HeadUnreachable, match=f"the user {os.geteuid()}'s"):
        await asyncio.to_thread(link.call, "GET", "/v1/time", "a secret token")
    assert "a secret token" not in proxy.heard


def test_the_other_end_of_a_connection_and_its_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        assert other_end_uid(near) is None  # nobody has accepted it yet
        far, _ = listener.accept()
        assert other_end_uid(near) == other_end_uid(far) == os.geteuid()
        far.close()
        assert other_end_uid(near) is None
        near.close()


def test_the_users_in_the_kernels_table_of_sockets() -> None:
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:041F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0
   1: 0100007F:041F 0100007F:8000 01 00000000:00000000 00:00000000 00000000  1000        0 8 1 0
   2: 0100007F:8000 0100007F:041F 01 00000000:00000000 00:00000000 00000000     0        0 9 1 0
   3: 0100007F:041F 0100007F:8001 08 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   4: 0100007F:8001 0100007F:041F 05 00000000:00000000 00:00000000 00000000     0        0 10 1 0
   5: 0100007F:041F
"""
    assert uid_in(table, 9) == 1000
    assert uid_in(table, 8) == 0
    assert uid_in(table, 10) is None
    assert uid_in(table, 11) is None
    assert uid_in("", 9) is None


def test_the_path_to_the_head_is_opened_before_the_first_connection(tmp_path: Path) -> None:
    stand_in = Tailscaled(tmp_path)
    try:
        stand_in.peers = {"100.64.0.1": True, "100.64.0.2": False}
        handshake.open_paths(Tailscale(tmp_path / "run/tailscale/tailscaled.sock"), ["100.64.0.1", "100.64.0.2"])
        assert stand_in.pinged[:2] == ["disco 100.64.0.1", "TSMP 100.64.0.1"]
        assert set(stand_in.pinged[2:]) == {"disco 100.64.0.2"}, "one that does not answer is given up"
    finally:
        stand_in.close()
    handshake.open_paths(Tailscale(tmp_path / "none"), ["100.64.0.1"])  # tailscaled does not run yet


# -- s6 ---------------------------------------------------------------------------------------------------------------


class Supervised:
    """One service directory under a real s6-svscan."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "scan/daemon"
        self.directory.mkdir(parents=True)
        (self.directory / "down").touch()
        self.says("exec sleep 600")
        self.scanner = subprocess.Popen(["s6-svscan", str(root / "scan")], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not services.supervised(self.directory):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.service = S6Service(self.directory)

    def says(self, text: str) -> None:
        program(self.directory, "run", f"{text}\n")

    def pid(self) -> int:
        argv = ["s6-svstat", "-o", "pid", str(self.directory)]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    def close(self) -> None:
        subprocess.run(["s6-svc", "-k", "-d", str(self.directory)], check=False)
        self.scanner.terminate()
        self.scanner.wait(20)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    if shutil.which("s6-svscan") is None:
        pytest.fail("s6 is missing: deploy/sandbox/setup.sh installs it")
    found = Supervised(tmp_path)
    yield found
    found.close()


def test_a_service_of_s6(supervised: Supervised) -> None:
    service = supervised.service
    assert not service.alive()
    service.stop()
    service.start()
    assert service.alive()
    first = supervised.pid()
    service.start()
    assert supervised.pid() == first, "it runs already"
    service.restart()
    assert service.alive()
    assert supervised.pid() != first
    os.kill(supervised.pid(), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not service.alive():
        assert time.monotonic() < deadline, "s6 keeps it running"
        time.sleep(0.01)
    service.stop()
    assert not service.alive()
    service.start_soon()
    while not service.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("runs", [True, False])
def test_a_service_is_as_ordered_after_its_supervisor_was_killed(supervised: Supervised, runs: bool) -> None:
    service = supervised.service
    service.start()
    first = supervised.pid()
    if not runs:
        service.stop()
    children = subprocess.run(["pgrep", "-P", str(supervised.scanner.pid)], capture_output=True, text=True, check=True)
    (supervisor,) = children.stdout.split()
    for pid in [int(supervisor), *([first] if runs else [])]:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{supervisor}/cmdline").exists() or not services.supervised(supervised.directory):
        assert time.monotonic() < deadline, "s6-svscan starts another"
        time.sleep(0.01)
    while runs and not service.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert service.alive() == runs


def test_a_daemon_that_ignores_the_order_is_killed(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "STOP_S", 0.2)
    supervised.says(f"trap '' TERM\n: >{supervised.directory}/deaf\nwhile :; do sleep 0.05; done")
    supervised.service.start()
    deadline = time.monotonic() + 20
    while not (supervised.directory / "deaf").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    supervised.service.stop()
    assert not supervised.service.alive()


def test_what_s6_does_not_supervise_is_not_alive_and_cannot_be_started(tmp_path: Path) -> None:
    service = S6Service(tmp_path / "none")
    assert not service.alive()
    assert not services.supervised(tmp_path / "none")
    with pytest.raises(ToolFailed):
        service.start_soon()


async def test_a_container_that_is_stopped_says_goodbye(house: House) -> None:
    """Only where the whole container is stopped, not where the agent alone is restarted."""
    await house.machine.start()
    await until(lambda: any(report.phase == "ready" for report in house.handlers.reports))
    await house.machine.stop()
    assert not any(report.phase == "rebooting" for report in house.handlers.reports)
    seen = len(house.handlers.reports)
    await house.machine.start()
    await until(lambda: len(house.handlers.reports) > seen)
    (house.machine.root / "run/meshd-pod/stopping").touch()
    await house.machine.stop()
    assert house.handlers.reports[-1].phase == "rebooting"
