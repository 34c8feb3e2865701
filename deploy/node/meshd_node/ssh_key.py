"""The section `ssh_key`: root on the head may come in as root, by its key, and from the head's address only.

On a machine with systemd the image's own ssh server lets it in. Some images forbid root's login there (Google's): then
a file of sshd_config.d allows it for the head's address, by key. In a pod this agent runs a server of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from . import pod_sshd
from .console import say
from .files import write_atomic, write_if_changed
from .tools import find, run

if TYPE_CHECKING:
    from .node import Node

MARK = "meshd: root on the head"
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{16,200}={0,2}\Z")
SSHD_S = 15.0


def apply(node: Node, value: dict[str, Any], _tell: Callable[[str], None]) -> None:
    """Let the key in, and no older one. `value`: {"key": "ssh-ed25519 ...", "from": ADDRESS}; both "" for none.

    Raises:
        ValueError: the key or the address cannot be one.
        OSError: a file cannot be written.
        ToolFailed, ToolTimeout: sshd refuses its settings, or does not start.
    """
    key, head = str(value["key"]), str(value["from"])
    if key and not _KEY.match(key):
        raise ValueError("the key")
    if key:
        head = str(ip_address(head))
    if not node.systemd:
        pod_sshd.serve(node, key)
        return
    line = f'from="{head}" {key} {MARK}' if key else ""
    _keep_line(node, line)
    _allow_root(node, head if key else "")


def _keep_line(node: Node, line: str) -> None:
    """Our line in root's authorized_keys; all others stay."""
    path = node.paths.root_ssh / "authorized_keys"
    old = path.read_text("utf-8", "surrogateescape") if path.exists() else ""
    kept = [one for one in old.splitlines() if not one.endswith(MARK)]
    text = "".join(one + "\n" for one in (*kept, *([line] if line else [])))
    if text != old:
        node.paths.root_ssh.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, text.encode("utf-8", "surrogateescape"), 0o600)


def _allow_root(node: Node, head: str) -> None:
    """Where the image's sshd lets root in by no key at all, let it in from the head."""
    path = node.paths.sshd_config_d / "00-meshd.conf"
    if not head:
        if path.exists():
            path.unlink()
            _reload(node)
        return
    if _root_may(head) is not False or not path.parent.is_dir():
        return
    text = f"# root on the head may come in by its key (meshctl ssh)\nMatch User root Address {head}\n"
    write_if_changed(path, f"{text}    PermitRootLogin prohibit-password\n".encode())
    if _root_may(head) is False:
        say(f"sshd lets root in from nowhere: its settings do not include {path.parent}", urgent=True)
    _reload(node)


def _root_may(head: str) -> bool | None:
    """What sshd makes of its settings for root and the head's address; None: there is no sshd, or it does not say."""
    program = find("sshd")
    if not program:
        return None
    asked = f"user=root,host={head},addr={head}"
    for line in run([program, "-T", "-C", asked], SSHD_S, check=False).stdout.splitlines():
        if line.lower().startswith("permitrootlogin "):
            return line.split()[1] not in ("no", "forced-commands-only")
    return None


def _reload(node: Node) -> None:
    """Debian and Ubuntu call the unit ssh, others sshd. A server that is started for each connection needs none."""
    for unit in ("ssh.service", "sshd.service"):
        if run([node.systemctl, "is-active", "--quiet", unit], SSHD_S, check=False).returncode == 0:
            run([node.systemctl, "reload", unit], SSHD_S)
            return
