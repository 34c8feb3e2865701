"""The ssh server of a pod: for root on the head alone.

A pod's tailscaled runs in user space and hands each connection to the pod's tailnet address on to 127.0.0.1. So the
server listens there, and no other network reaches it. With a TUN device it listens on the tailnet address.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .files import write_if_changed
from .paths import Paths
from .services import S6Service
from .tools import find, run

if TYPE_CHECKING:
    from .node import Node

KEYGEN_S = 30.0

CONFIG = """\
ListenAddress {address}
Port 22
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
PidFile none
AllowUsers root
AuthenticationMethods publickey
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AllowAgentForwarding no
X11Forwarding no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def host_key(paths: Paths) -> str:
    """The server's public key, type and key; made at the first call. "" where there is no sshd.

    Raises:
        ToolFailed, ToolTimeout: ssh-keygen fails.
        OSError: the directory cannot be written.
    """
    if not find("sshd") or not find("ssh-keygen") or not (paths.pod_services / "sshd").is_dir():
        return ""
    key = paths.pod_ssh / "host_key"
    public = paths.pod_ssh / "host_key.pub"
    if not public.exists() or not key.exists():
        paths.pod_ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in (key, public):
            half.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], KEYGEN_S)
    return " ".join(public.read_text().split()[:2])


def serve(node: Node, key: str) -> None:
    """Run the server for this key of root's on the head; stop it where there is none.

    Raises:
        ToolFailed, ToolTimeout: the server does not start.
        OSError: a file cannot be written.
    """
    service = S6Service(node.paths.pod_services / "sshd")
    if not host_key(node.paths):
        return
    if not key:
        service.stop()
        return
    directory: Path = node.paths.pod_ssh
    address = node.state.address if node.tun else "127.0.0.1"
    text = CONFIG.format(address=address, directory=directory)
    changed = write_if_changed(directory / "sshd_config", text.encode())
    write_if_changed(directory / "authorized_keys", f"{key}\n".encode())
    for name in ("sshd_config", "authorized_keys"):
        (directory / name).chmod(0o600)
    if changed and service.alive():
        service.restart()
    else:
        service.start()
