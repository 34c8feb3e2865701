"""A node's own name leads to its tailnet address in the real resolver, whatever stands in /etc/hosts of its image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.node.meshd_node.hosts import with_block
from deploy.node.meshd_node.own_names import without_own

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

SLOT, ADDRESS = "h100-1", "100.64.0.7"
ROSTER = {SLOT: ADDRESS, "h100-2": "100.64.0.8"}
DEBIAN = f"127.0.0.1 localhost\n127.0.1.1 {SLOT}.example.net {SLOT}\n::1 localhost ip6-localhost {SLOT}\n"

LOOK = f"""\
ip link set lo up; ip addr add {ADDRESS}/32 dev lo; hostname {SLOT}; mount --bind "$1" /etc/hosts
getent ahosts {SLOT} | cut -d' ' -f1 | uniq
"""
RENDEZVOUS = f"""\
{LOOK.splitlines()[0]}
python3 - <<'END'
import socket
own = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0]
with socket.create_server((own, 0)) as server:  # as gloo offers itself to the other ranks
    print(own, server.getsockname()[0])
END
"""


def inside(script: str, hosts: Path) -> list[str]:
    """What a script prints where this is /etc/hosts."""
    argv = ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-ec", script, "sh", str(hosts)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_a_block_alone_does_not_help_and_the_agents_file_does(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{ADDRESS} {SLOT}\n{DEBIAN}")
    assert inside(LOOK, hosts)[0] != ADDRESS, "the resolver sorts 127.0.1.1 first, wherever the line stands"
    text = with_block(without_own(DEBIAN, SLOT, ROSTER), ROSTER)
    hosts.write_text(text)
    assert inside(LOOK, hosts) == [ADDRESS]
    assert inside(RENDEZVOUS, hosts) == [ADDRESS, ADDRESS]
    assert with_block(without_own(text, SLOT, ROSTER), ROSTER) == text
