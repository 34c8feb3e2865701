"""`meshctl push` and `pull`: rsync's command line, and the remote shell that connects back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshd.cli import node_shell
from meshd.cli.errors import CliError
from meshd.cli.transfer import Place, Route, Slurm, Wanted, local, node_of, place, rsync_argv
from meshd.errors import CommandError
from meshd.runtime.run import Result


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h100-1:/tmp/x", Place("h100-1", "/tmp/x")),
        (":/tmp/x", Place("", "/tmp/x")),
        ("h100-1:", Place("h100-1", "")),
        ("h100-1:a:b", Place("h100-1", "a:b")),
        ("h100-1:it's a \\ name", Place("h100-1", "it's a \\ name")),
        ("./a:b", None),
        ("/tmp/a:b", None),
        ("data", None),
    ],
)
def test_places(text: str, found: Place | None) -> None:
    assert place(text) == found


@pytest.mark.parametrize("text", ["-e:x", "a b:/x", "root@h:/x", "$(id):x", "h100-[1-2]:/x"])
def test_what_is_no_node(text: str) -> None:
    with pytest.raises(CliError):
        place(text)


def test_one_node_for_all() -> None:
    assert node_of([Place("a", "x"), Place("a", "y")]) == "a"
    with pytest.raises(CliError):
        node_of([Place("a", "x"), Place("b", "x")])


@pytest.mark.parametrize(("path", "word"), [("a:b", "./a:b"), ("x", "x"), ("./a:b", "./a:b"), ("/a:b", "/a:b")])
def test_names_on_the_head(path: str, word: str) -> None:
    assert local(path) == word


def argv(route: Route, wanted: Wanted | None = None) -> list[str]:
    environment = {"SLURM_JOB_ID": "3", "SRUN_DEBUG": "9", "SLURM_CONF": "/x", "PATH": "/bin"}
    target = Place(route.node, "/tmp/a b")
    return rsync_argv(route, ["-n", "a:b"], target, wanted or Wanted(), environment=environment, ports="1-2", home="/h")


def test_the_command_line() -> None:
    words = argv(Route("h100-1", 17), Wanted(delete=True, dry_run=True, exclude=("*.o",)))
    assert words[:5] == ["env", "-u", "SLURM_JOB_ID", "-u", "SRUN_DEBUG"]
    assert words[-4:] == ["--", "-n", "./a:b", "h100-1:/tmp/a b"]
    assert {"-s", "--delete", "--dry-run", "--exclude=*.o"} <= set(words)
    (srun,) = [word for word in words if word.startswith(node_shell.SRUN)]
    assert "--jobid=17 --overlap --gres=none" in srun
    assert "--chdir=/h" in srun


def test_nothing_comes_from_a_node_that_gives_rights() -> None:
    """Root of a node chooses modes: no setuid or setgid program, and no device for root who pulls."""
    route = Route("h100-1", 17)
    words = rsync_argv(route, [Place("h100-1", "/x")], ".", Wanted(), environment={}, ports="1-2", home="/h")
    assert {"--no-D", "--chmod=Fug-s"} <= set(words)
    assert not {"--no-D", "--chmod=Fug-s"} & set(argv(route)), "what goes there stays as it is"


def test_without_a_job_it_has_a_small_one() -> None:
    (srun,) = [word for word in argv(Route("h100-1", 0, "h100")) if word.startswith(node_shell.SRUN)]
    assert "--partition=h100" in srun
    assert "--immediate=" in srun
    assert "--jobid" not in srun


def slurm(**answers: str) -> Slurm:
    async def run(words: Sequence[str], **_: object) -> Result:
        answer = answers[words[0]]
        if answer.startswith("error"):
            raise CommandError(list(words), 1, answer)
        return Result(tuple(words), 0, answer, "")

    return Slurm(run)


async def test_the_nodes_of_a_job() -> None:
    found = await slurm(squeue="19|h100-[1-2]\n", scontrol="h100-1\nh100-2\n").routes("17_2")
    assert found == [Route("h100-1", 19), Route("h100-2", 19)]
    for told in ("", "error: Invalid job id specified", "error: no answer", "18|a\n19|b\n"):
        with pytest.raises(CliError):
            await slurm(squeue=told).routes("17")
    with pytest.raises(CliError):
        await slurm().routes("17; id")


async def test_the_way_to_a_node() -> None:
    assert await slurm(squeue="3\n12\n", sinfo="h100\n").route("h100-1") == Route("h100-1", 12)
    assert await slurm(squeue="", sinfo="h100\nall\n").route("h100-1") == Route("h100-1", 0, "h100")
    assert await slurm(squeue="", sinfo="").route("h100-1") is None
    assert await slurm(squeue="error: Invalid node name").route("x") is None


@pytest.mark.parametrize(
    ("line", "ports"), [("SrunPortRange = 60001-63000", "60001-63000"), ("SrunPortRange = 0-0", "0-0"), ("", "0-0")]
)
async def test_ports(line: str, ports: str) -> None:
    assert await slurm(scontrol=f"{line}\n").ports() == ports


SRUN = '#!/bin/sh\nshift\nexport SLURM_LAUNCH_NODE_IPADDR=127.0.0.1\nexec "$@"\n'
"""In place of srun: it runs the program here."""


def shell(tmp_path: Path, *words: str, srun: str = SRUN, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = tmp_path / "srun"
    program.write_text(srun)
    program.chmod(0o755)
    environment = {**os.environ, node_shell.SRUN: str(program), node_shell.PORTS: "0-0"}
    argv = [sys.executable, node_shell.__file__, "h100-1", *words]
    return subprocess.run(argv, input=data, capture_output=True, env=environment, timeout=60, check=False)


def test_bytes_and_exit_codes_go_through(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    done = shell(tmp_path, "sh", "-c", "cat; exit 23", data=data)
    assert done.stdout == data
    assert done.returncode == 23


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    done = shell(tmp_path, "/nowhere/rsync")
    assert done.returncode == 127


def test_a_step_that_does_not_start(tmp_path: Path) -> None:
    done = shell(tmp_path, "cat", srun="#!/bin/sh\necho srun: error: busy >&2\nexit 1\n")
    assert done.returncode == 1
    assert b"busy" in done.stderr


def test_a_stranger_gets_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for sent in (b"", b"x" * 32, b"s" * 31):
            with socket.create_connection(listener.getsockname()) as stranger:
                found, _ = listener.accept()
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                with found:
                    assert not node_shell._has_secret(found, b"s" * 32)
        with socket.create_connection(listener.getsockname()) as friend:
            found, _ = listener.accept()
            threading.Thread(target=friend.sendall, args=(b"s" * 32,)).start()
            with found:
                assert node_shell._has_secret(found, b"s" * 32)
