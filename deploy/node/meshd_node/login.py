"""Whether the control server takes this machine's login, and how one that it refuses comes back without a key.

Facts, measured with tailscale 1.102: a dead auth key that is given to a machine with a good login leaves a zombie.
`tailscale up` says 0, BackendState stays Running, the data plane goes on, control is lost, and the dead key is tried for
ever. The old node key is on disk until a new one is accepted: a login with an empty key, or a restart, brings it back.
`up` with all settings and no key at all does not.
"""

from __future__ import annotations

import time
from typing import Any

from .node import Node
from .tailscale import Tailscale, TailscaleFault
from .tools import run

RECOVER_S = 20.0
STEP_S = 0.02
EMPTY_KEY = "file:/dev/null"
_UNREACHED = (
    "fetch control key", "dial tcp", "connection refused", "connection reset", "no such host", "timeout",
    "deadline exceeded", "unreachable", "unexpected eof", "tls:", "x509:",
)  # fmt: skip
"""Parts of Go's words when the control server was not reached: tailscaled tries again, and no login is refused."""


def complaints(status: dict[str, Any]) -> list[str]:
    """Login errors that tailscaled tells of."""
    return [str(line) for line in status.get("Health") or [] if "login error" in str(line).lower()]


def online(status: dict[str, Any]) -> bool:
    """Neither Running nor a good end of `up` prove it: control must show us online, without a login error."""
    own = status.get("Self") or {}
    return status.get("BackendState") == "Running" and own.get("Online") is True and not complaints(status)


def zombie(status: dict[str, Any]) -> str:
    """The words with which control refuses a machine that seems to run; "" while it does not.

    A control server that cannot be reached refuses nothing.
    """
    own = status.get("Self") or {}
    if status.get("BackendState") not in ("Running", "Starting") or own.get("Online") is True:
        return ""
    refusals = [line for line in complaints(status) if not any(word in line.lower() for word in _UNREACHED)]
    return refusals[0] if refusals else ""


def device(status: dict[str, Any]) -> dict[str, str]:
    """This device's node key and IPv4 address."""
    own = status.get("Self") or {}
    addresses = [str(one) for one in status.get("TailscaleIPs") or [] if "." in str(one)]
    return {"key": str(own.get("PublicKey", "")), "address": addresses[0] if addresses else ""}


def until_online(tailscale: Tailscale, old_key: str, within_s: float) -> dict[str, str] | None:
    """This device once it is online with another key than the old one; None when it does not come to that."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            status = tailscale.status()
            own = device(status)
            if online(status) and own["key"] != old_key:
                return own
        except TailscaleFault:  # it is being restarted
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return None
        time.sleep(STEP_S)


def recover(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Bring the old login back after one that failed; what helped, for people.

    Args:
        node: this machine.
        tailscale: its tailscaled.
        within_s: for control to show it online after each of the two tries.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout, ToolFailed: tailscaled does not answer, or does not restart.
    """
    if online(tailscale.status()):
        return "the old login is unharmed"
    tailscale.up(f"--auth-key={EMPTY_KEY}", "--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    if until_online(tailscale, "", within_s) is not None:
        return "the old login is back"
    if node.systemd:
        run([node.systemctl, "restart", "tailscaled"], 60.0)
    else:
        tailscale.down()
        tailscale.up("--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    if until_online(tailscale, "", within_s) is not None:
        return "the old login is back after a restart of tailscaled"
    return "and the old login is not back: the machine is not connected to the control server"


def renew(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Log in with the stored auth key after this machine's own node key has expired; what came of it, for people.

    The device and its address stay the same.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout: tailscaled does not answer, or does not end.
    """
    if not node.paths.auth_key.exists():
        return (
            "no auth key is kept here (a machine with a key of its own keeps none), and the head cannot be reached for one: "
            "the head gives the machine back, or `tailscale up` by hand with a new key"
        )
    words = (f"--auth-key=file:{node.paths.auth_key}", "--accept-risk=lose-ssh", "--timeout=20s")
    said = tailscale.up(*words, timeout_s=30.0)
    if until_online(tailscale, "", 1.0 if said else within_s) is not None:
        return "it is logged in again"
    return said or "control does not show it online"
