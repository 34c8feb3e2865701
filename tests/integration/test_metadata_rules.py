"""The rules that close the metadata service, in a real kernel: each tool keeps users out, and not root."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.sandbox.images import ensure_base

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

AGENT = Path(__file__).resolve().parents[2] / "deploy" / "node" / "meshd_node"
TRY = """\
import json, socket, subprocess, sys
sys.path.insert(0, "/mnt")
from meshd_node import metadata, tools
from meshd_node.errors import ToolMissing

allowed = sys.argv[1].split(",")
def run(argv, timeout_s, stdin):
    if argv[0] not in allowed:
        raise ToolMissing(argv[0])
    return tools.run(argv, timeout_s, stdin)

def reach(uid, port):
    code = "import os,socket,sys; os.setgid(%d); os.setuid(%d); s=socket.socket()\\n" % (uid, uid)
    code += "s.settimeout(%g)\\n" % within_s
    code += "try: s.connect(('169.254.169.254', %d))\\nexcept OSError as e: print(type(e).__name__, e.errno)" % port
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()

# Behind the router that answers nothing each try lasts as long as it may.
within_s = 0.5 if allowed == ["ip"] else 10
if allowed != ["ip"]:
    services = [socket.create_server(("169.254.169.254", port)) for port in (53, 80, 8080)]
before = metadata.in_place(run), reach(1000, 80)
twice = metadata.close(run), metadata.close(run)
print(json.dumps({"before": before, "twice": twice, "in place": metadata.in_place(run), "user": reach(1000, 80),
                  "root": reach(0, 80), "user's name server": reach(1000, 53), "user, any port": reach(1000, 8080)}))
"""
SCRIPT = """\
set -e
mount --bind "$2" "$1/mnt"
mount -t proc proc "$1/proc"
ip link set lo up
if [ "$3" = ip ]; then ip route add default dev lo; else ip addr add 169.254.169.254/32 dev lo; fi
exec chroot "$1" python3 /mnt/try.py "$3"
"""


async def closed_by(tools: str, work: Path) -> Any:
    """Close it by these tools in a network namespace of its own; what users and root meet then.

    The service is on the loopback interface. For routing rules, which the kernel's own addresses are free of, it is
    behind a router that answers nothing.
    """
    base = await ensure_base("trixie")
    shutil.copytree(AGENT, work / "meshd_node")
    (work / "try.py").write_text(TRY)
    argv = ["unshare", "--net", "--mount", "sh", "-c", SCRIPT, "sh", str(base), str(work), tools]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("tools", ["nft,iptables,ip6tables,ip", "iptables,ip6tables,ip", "ip"])
async def test_each_tool_keeps_users_out(tools: str, tmp_path: Path) -> None:
    told = await closed_by(tools, tmp_path / "work")
    let_pass = "TimeoutError None" if tools == "ip" else ""
    assert told["before"] == [False, let_pass], "it was open before"
    assert told["twice"] == ["", ""], "and may be closed again"
    assert told["in place"] is True
    kept_out = "PermissionError 13" if tools == "ip" else "ConnectionRefusedError 111"
    assert told["user"] == told["user, any port"] == kept_out
    assert told["root"] == let_pass
    assert told["user's name server"] == let_pass, "on GCE it has the same address"
