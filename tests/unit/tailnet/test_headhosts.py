"""What root does about the nodes' names in /etc/hosts: one block, plain names, the tailnet's addresses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from meshd.runtime.request import RequestRefused
from meshd.slurm.nodes import PoolLine, render
from meshd.tailnet import headhosts
from meshd.tailnet.headhosts import put, serve

BEFORE = "127.0.0.1 localhost\n127.0.1.1 gateway.example gateway\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    file = tmp_path / "hosts"
    file.write_text(BEFORE)
    file.chmod(0o644)
    (tmp_path / "meshd.toml").write_text("[pools.h100]\nmax_nodes = 4\n[pools.gateway]\n")
    return file


def ask(hosts: Path, body: object, mode: int = 0o600) -> bool:
    request = hosts.parent / headhosts.REQUEST
    request.write_text(body if isinstance(body, str) else json.dumps(body))
    request.chmod(mode)
    try:
        return serve(request, hosts, hosts.parent / "meshd.toml", hosts.parent / "nodes.conf")
    finally:
        assert not request.exists(), "or it would be served for ever"


def test_names_come_and_go(hosts: Path) -> None:
    assert ask(hosts, {"names": {"h100-2": "100.64.0.3", "h100-1": "100.64.0.2"}})
    block = "# BEGIN meshd\n100.64.0.2\th100-1\n100.64.0.3\th100-2\n# END meshd\n"
    assert hosts.read_text() == BEFORE + block
    assert hosts.stat().st_mode & 0o777 == 0o644
    assert not ask(hosts, {"names": {"h100-2": "100.64.0.3", "h100-1": "100.64.0.2"}}), "nothing to do"
    hosts.write_text(hosts.read_text() + "10.0.0.9 mine\n")
    assert ask(hosts, {"names": {}})
    assert hosts.read_text() == BEFORE + "10.0.0.9 mine\n"


def test_a_link_stays_one(hosts: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(hosts)
    assert put(link, {"h100-1": "100.64.0.2"})
    assert link.is_symlink()
    assert "h100-1" in hosts.read_text()


@pytest.mark.parametrize(
    "names",
    [
        {"gateway.example": "100.64.0.2"},
        {"gateway": "100.64.0.2"},
        {"ldap": "100.64.0.2"},
        {"localhost": "100.64.0.2"},
        {"head": "100.64.0.2"},
        {"ldap-1": "100.64.0.2"},
        {"h100-5": "100.64.0.2"},
        {"h100-01": "100.64.0.2"},
        {"h100-0": "100.64.0.2"},
        {"localhost\n1.2.3.4 x": "100.64.0.2"},
        {"Bank": "100.64.0.2"},
        {"-x": "100.64.0.2"},
        {"": "100.64.0.2"},
        {"h100-1": "10.0.0.1"},
        {"h100-1": "100.128.0.1"},
        {"h100-1": "100.64.0.2 bank"},
        {"h100-1": 1681915906},
        {"h100-1": None},
        ["h100-1"],
        None,
    ],
)
def test_anything_else_is_refused_whole(hosts: Path, names: object) -> None:
    more = {"h100-2": "100.64.0.3", **names} if isinstance(names, dict) else names
    with pytest.raises(RequestRefused):
        ask(hosts, {"names": more})
    assert hosts.read_text() == BEFORE


def test_a_name_that_means_something_here_is_left(hosts: Path) -> None:
    hosts.write_text(BEFORE + "10.0.0.7 gateway-1\n")
    assert ask(hosts, {"names": {"gateway-1": "100.64.0.2", "h100-1": "100.64.0.3"}})
    assert hosts.read_text() == BEFORE + "10.0.0.7 gateway-1\n# BEGIN meshd\n100.64.0.3\th100-1\n# END meshd\n"


def test_a_slot_that_slurm_has_may_be_named_when_the_settings_lose_it(hosts: Path) -> None:
    made = render([PoolLine("old", "", 3, "", 0, 1, 1024)], [], shapes_fixed=False)
    (hosts.parent / "nodes.conf").write_text(made.nodes_conf)
    assert ask(hosts, {"names": {"old-3": "100.64.0.2", "h100-4": "100.64.0.3"}})
    with pytest.raises(RequestRefused):
        ask(hosts, {"names": {"old-4": "100.64.0.2"}})


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_file_is_taken_away(hosts: Path, kind: str) -> None:
    request = hosts.parent / headhosts.REQUEST
    request.mkdir() if kind == "directory" else os.mkfifo(request)
    with pytest.raises(RequestRefused):
        serve(request, hosts)
    assert not os.path.lexists(request)


@pytest.mark.parametrize(("body", "mode"), [("[]", 0o600), ("{", 0o600), ('{"names": {}}', 0o644), ("", 0o600)])
def test_what_is_no_request(hosts: Path, body: str, mode: int) -> None:
    with pytest.raises(RequestRefused):
        ask(hosts, body, mode)


def test_the_program(hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["headhosts", *words])
        return headhosts.main()

    monkeypatch.setattr(headhosts, "HOSTS", hosts)
    assert put(hosts, {"h100-1": "100.64.0.2"})
    assert run("--remove") == 0
    assert hosts.read_text() == BEFORE
    assert "was removed" in capsys.readouterr().err
    assert run("--remove") == 0
    assert capsys.readouterr().err == ""
    assert run(str(hosts.parent)) == 1
    assert "is left as it is: " in capsys.readouterr().err
    for words in ((), ("--remove", "/run/meshd")):
        with pytest.raises(SystemExit):
            run(*words)
