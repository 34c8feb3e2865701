"""The lines that the agent puts into /etc/pam.d/sshd, as the real PAM reads them."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

import pytest

from deploy.node.meshd_node import ssh_access
from deploy.node.meshd_node.paths import Paths

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SSHD = """\
# PAM configuration for the Secure Shell service
auth       required     pam_permit.so
account    required     pam_nologin.so
@include common-account
session    required     pam_loginuid.so
@include common-session
"""
COMMON = """\
account [success=1 new_authtok_reqd=done default=ignore] pam_permit.so
account requisite pam_deny.so
account required pam_permit.so
"""
SUCCESS = 0
CONVERSATION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Conversation(ctypes.Structure):
    """struct pam_conv."""

    _fields_ = (("conv", CONVERSATION), ("data", ctypes.c_void_p))


def account(directory: Path, user: str) -> int:
    """pam_acct_mgmt of the service sshd for a user, with the files of this directory."""
    pam = ctypes.CDLL(ctypes.util.find_library("pam"))
    talk = Conversation(CONVERSATION(lambda *_: 19), None)
    handle = ctypes.c_void_p()
    begun = pam.pam_start_confdir(
        b"sshd", user.encode(), ctypes.byref(talk), str(directory).encode(), ctypes.byref(handle)
    )
    assert begun == SUCCESS
    try:
        return int(pam.pam_acct_mgmt(handle, 0))
    finally:
        pam.pam_end(handle, 0)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for directory in ("etc/pam.d", "etc/meshd-node", "usr/lib/x86_64-linux-gnu/security"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc/pam.d/sshd").write_text(SSHD)
    (tmp_path / "etc/pam.d/common-account").write_text(COMMON)
    (tmp_path / "etc/pam.d/common-session").write_text("")
    (tmp_path / "etc/meshd-node/cluster-users").write_text("games\n")
    return Paths(tmp_path)


def install(paths: Paths) -> Path:
    found = paths.root / "usr/lib/x86_64-linux-gnu/security" / ssh_access.MODULE
    found.touch()
    return found


def asks(paths: Paths, verdict: str) -> Path:
    """The agent's lines, with a module that always says the same in the place of pam_slurm_adopt: it knows no job."""
    text = ssh_access.with_block(paths.pam_sshd.read_text(), verdict, paths.cluster_users)
    paths.pam_sshd.write_text(text)
    return paths.pam_sshd.parent


def test_only_users_of_the_cluster_are_restricted(paths: Paths) -> None:
    asked = asks(paths, "pam_deny.so")
    assert account(asked, "root") == SUCCESS
    assert account(asked, "daemon") == SUCCESS
    assert account(asked, "games") != SUCCESS
    asks(paths, "pam_permit.so")
    assert account(asked, "games") == SUCCESS


def test_root_gets_in_without_the_list(paths: Paths) -> None:
    asked = asks(paths, "pam_deny.so")
    paths.cluster_users.unlink()
    assert account(asked, "root") == SUCCESS


def test_the_lines_follow_the_module(paths: Paths) -> None:
    assert not ssh_access.keep(paths)
    assert paths.pam_sshd.read_text() == SSHD
    found = install(paths)
    assert ssh_access.keep(paths)
    text = paths.pam_sshd.read_text()
    lines = text.splitlines()
    assert lines.index("@include common-account") + 1 == lines.index(ssh_access.BEGIN)
    assert f"account required /{found.relative_to(paths.root)}" in lines
    assert ssh_access.keep(paths) and paths.pam_sshd.read_text() == text
    found.unlink()
    assert not ssh_access.keep(paths)
    assert paths.pam_sshd.read_text() == SSHD


@pytest.mark.parametrize("text", ["", "auth required pam_permit.so", "account required pam_permit.so"])
def test_other_files(text: str) -> None:
    once = ssh_access.with_block(text, "/m.so", Path("/users"))
    assert ssh_access.with_block(once, "/m.so", Path("/users")) == once
    assert [line for line in ssh_access.with_block(once, "", Path("/users")).split("\n") if line] == [
        line for line in text.split("\n") if line
    ]


def test_contain(paths: Paths) -> None:
    assert ssh_access.adopts(paths)
    paths.slurm_conf_cache.parent.mkdir(parents=True)
    for line, yes in (("PrologFlags=Alloc,Contain", True), ("#PrologFlags=contain", False), ("PrologFlags=X11", False)):
        paths.slurm_conf_cache.write_text(f"ClusterName=lab\n{line}\n")
        assert ssh_access.adopts(paths) is yes
