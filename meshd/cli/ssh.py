"""The command line of ssh to a node: who is there is proved by the host key that the node reported when it joined."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.api.schema import NodeRow
from meshd.cli.errors import CliError, ExitCode

_HOST_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) [A-Za-z0-9+/]{16,900}={0,2}")
"""A node chooses the text: root on it must not add words to a command line here."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_ADDRESS = re.compile(r"[0-9a-f.:]{3,45}")
CONNECT_TIMEOUT_S = 10

_ROOT_GIVES_NOTHING = {
    "PreferredAuthentications": "publickey",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
}
"""Whoever is root on the node must get nothing of root's on the head, whatever ssh_config says there: no password typed
at the node's question, no Kerberos ticket, agent, display or network.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A node that ssh can reach, and prove.

    Attributes:
        slot: its name in Slurm, which ssh shows.
        machine: the name under which its host key is known.
        address: on the tailnet.
        host_key: type and key.
    """

    slot: str
    machine: str
    address: str
    host_key: str


def target(row: NodeRow, *, root: bool) -> Target:
    """The node of a row.

    Args:
        row: as meshd has it.
        root: the caller is root, who alone comes in to pods.

    Raises:
        CliError: it is not on the tailnet yet, has not joined, or has no ssh server for the caller.
    """
    shell = f"use Slurm: `srun -w {row.slot} --pty bash -l`, or inside a job `srun --jobid=ID --overlap --pty bash -l`"
    if not row.address:
        raise CliError(
            f"{row.machine} is {row.phase}: it is not on the tailnet",
            f"see `meshctl explain {row.machine}` and `meshctl logs {row.machine}`",
            kind="refused",
        )
    if not row.joined:
        raise CliError(
            f"{row.machine} is {row.phase}: its host key is not known before it has joined",
            f"see `meshctl explain {row.machine}` and `meshctl logs {row.machine}`",
            kind="refused",
        )
    if not row.ssh_host_key:
        raise CliError(
            f"{row.machine} has no ssh server: it reported no host key",
            shell,
            kind="refused",
        )
    if row.pod and not root:
        raise CliError(f"{row.machine} is a pod: only root on the head comes in by ssh", shell, kind="refused")
    usable = _NAME.fullmatch(row.slot) and _NAME.fullmatch(row.machine) and _ADDRESS.fullmatch(row.address)
    if not usable or not _HOST_KEY.fullmatch(row.ssh_host_key):
        raise CliError(
            f"{row.machine} reported a host key or a name that cannot be used",
            f"if you trust it no longer: `meshctl remove {row.machine}`",
            kind="refused",
        )
    return Target(row.slot, row.machine, row.address, row.ssh_host_key)


def root_key(path: Path) -> Path | None:
    """The head's key for root; None for other users, who use their own.

    Raises:
        CliError: there is no key.
    """
    if os.geteuid() != 0:
        return None
    if not path.is_file():
        raise CliError(
            f"the head has no key for its nodes: there is no {path}",
            "`meshctl init` makes it; meshd then gives its public half to the nodes",
            kind="no_key",
        )
    return path


def ssh_program() -> str:
    """The path of ssh.

    Raises:
        CliError: it is not installed.
    """
    found = shutil.which("ssh")
    if found is None:
        raise CliError("there is no program ssh", "apt install openssh-client", code=ExitCode.FAILED, kind="no_ssh")
    return found


def ssh_argv(
    to: Target, key: Path | None, *, program: str = "ssh", options: Sequence[str] = (), words: Sequence[str] = ()
) -> list[str]:
    """The command line. Of several values for an option ssh takes the first: nobody can turn off the proof.

    `KnownHostsCommand` needs OpenSSH 8.5.

    Args:
        to: the node.
        key: root's key; None: the user's own account and keys.
        program: ssh.
        options: the user's own, as ssh takes them.
        words: the command; none: a shell.
    """
    proof = {
        "StrictHostKeyChecking": "yes",
        "KnownHostsCommand": f"/bin/echo {to.machine} {to.host_key}",
        "UserKnownHostsFile": "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": to.machine,
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "VerifyHostKeyDNS": "no",
        "CanonicalizeHostname": "no",
        "HostName": to.address,
        "NoHostAuthenticationForLocalhost": "no",
        # A connection that is open already may lead to the machine that had this address before.
        "ControlMaster": "no",
        "ControlPath": "none",
    }
    ours = {"ConnectTimeout": str(CONNECT_TIMEOUT_S), "ServerAliveInterval": "15", "LogLevel": "ERROR"}
    if key is None:
        # The accounts of users have no password on nodes, and root there must not learn the one of the head.
        ours |= {"PasswordAuthentication": "no"}
    else:
        ours |= {"User": "root", "IdentityFile": str(key), "IdentitiesOnly": "yes", **_ROOT_GIVES_NOTHING}
    return [program, *_pairs(proof), *options, *_pairs(ours), to.slot, *words]


def _pairs(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
