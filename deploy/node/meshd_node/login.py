"""Whether the control server takes this machine's login, and how one that it refuses comes back without a key.

Facts, measured with tailscale 1.102: a dead auth key that is given to a machine with a good login leaves a zombie.
`tailscale up` says 0, BackendState stays Running, the data plane goes on, control is lost, and the dead key is tried for
ever. The old node key is on disk until a new one is accepted: a login with an empty key, or a restart, brings it back.
`up` with all settings and no key at all does not.

A device that is deleted while its machine runs is offline at once, and so is one whose control server is away: Running,
Self.Online false, not a word in Health for hours. Only a login with an empty key tells them apart. It does no harm to a
good login (same device, no packet lost, also while control is away); a control server that has deleted the device
answers it with an AuthURL. The stored key then makes a new device with a new address, in 0.3 to 2.6 s. After a restart
of tailscaled the deleted device is NeedsLogin. A machine that joined with a key of its own has a spare for this, for one
use: it is removed when it was used, and the head sends another.
"""

from __future__ import annotations

import time
from typing import Any

from .node import Node
from .tailscale import Tailscale, TailscaleFault
from .tools import run

RECOVER_S = 20.0
DELETED = "the control server does not know its device any more"
EXPIRED = "its node key has expired"
SWITCHED_OFF = "tailscale was switched off here"
SILENT = "it is not connected to the control server, which does not say why"
STEP_S = 0.02
EMPTY_KEY = "file:/dev/null"
EMPTY_UP_S = 2
"""`tailscale up` itself waits no longer. Where control wants a login it would wait in vain; what comes of it otherwise
goes on in tailscaled, and is seen in its status."""
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


def asked(status: dict[str, Any]) -> bool:
    """Control wants a login from a machine that has a node key: its device was deleted, or the key has expired."""
    if status.get("HaveNodeKey") is not True:
        return False
    offline = (status.get("Self") or {}).get("Online") is not True
    return status.get("BackendState") == "NeedsLogin" or (offline and bool(status.get("AuthURL")))


def ailment(status: dict[str, Any]) -> str:
    """What of this login can be mended from here, for people; "" when nothing is wrong or it cannot be."""
    own = status.get("Self") or {}
    if asked(status):
        expired = status.get("BackendState") == "NeedsLogin" and bool(status.get("TailscaleIPs"))
        return EXPIRED if expired else DELETED
    if status.get("BackendState") == "Stopped" and status.get("HaveNodeKey") is True:
        return SWITCHED_OFF
    running = status.get("BackendState") == "Running" and status.get("HaveNodeKey") is True
    if running and own.get("Online") is False and not complaints(status):
        return SILENT
    return zombie(status)


def device(status: dict[str, Any]) -> dict[str, str]:
    """This device's node key and IPv4 address."""
    own = status.get("Self") or {}
    addresses = [str(one) for one in status.get("TailscaleIPs") or [] if "." in str(one)]
    return {"key": str(own.get("PublicKey", "")), "address": addresses[0] if addresses else ""}


def until_online(
    tailscale: Tailscale, old_key: str, within_s: float, *, or_asked: bool = False
) -> dict[str, str] | None:
    """This device once it is online with another key than the old one; None when it does not come to that.

    With `or_asked` it is not waited for any longer once control wants a login.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            status = tailscale.status()
            own = device(status)
            if online(status) and own["key"] != old_key:
                return own
            if or_asked and asked(status):
                return None
        except TailscaleFault:  # it is being restarted
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return None
        time.sleep(STEP_S)


def recover(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Bring the old login back after one that failed, or log in anew where control wants it; what helped, for people.

    Where control is away nothing but an empty key is tried: that tells it from a device that was deleted.

    Args:
        node: this machine.
        tailscale: its tailscaled.
        within_s: for control to show it online after each of the two tries.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout, ToolFailed: tailscaled does not answer, or does not restart.
    """
    status = tailscale.status()
    if online(status):
        return "the old login is unharmed"
    refused = zombie(status)
    tailscale.up(f"--auth-key={EMPTY_KEY}", "--accept-risk=lose-ssh", f"--timeout={EMPTY_UP_S}s", timeout_s=30.0)
    if until_online(tailscale, "", within_s, or_asked=True) is not None:
        return "the old login is back"
    if asked(tailscale.status()):
        return renew(node, tailscale, within_s)
    if not refused:
        return "the control server does not answer"
    if node.systemd:
        run([node.systemctl, "restart", "tailscaled"], 60.0)
    else:
        tailscale.down()
        tailscale.up("--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    if until_online(tailscale, "", within_s) is not None:
        return "the old login is back after a restart of tailscaled"
    return "and the old login is not back: the machine is not connected to the control server"


def switch_on(tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """`tailscale up` after `tailscale down`, with all that it was told before; what came of it, for people.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout: tailscaled does not answer, or does not end.
    """
    said = tailscale.up("--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    if until_online(tailscale, "", 1.0 if said else within_s) is not None:
        return "it is switched on again"
    return said or "control does not show it online"


def renew(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Log in with the stored auth key, else with the spare, where control wants a login; what came of it, for people.

    With a node key that had expired the device and its address stay the same. A device that was deleted comes back as
    another one, with another address.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout: tailscaled does not answer, or does not end.
    """
    paths = node.paths
    key = paths.auth_key if paths.auth_key.exists() else paths.spare_key
    if not key.exists():
        return (
            "no auth key is kept here, nor a spare one, and the head cannot be reached for one: the head gives the machine "
            "back, or `tailscale up` by hand with a new key"
        )
    said = tailscale.up(f"--auth-key=file:{key}", "--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    own = until_online(tailscale, "", 1.0 if said else within_s)
    if own is not None:
        if key == paths.spare_key:
            key.unlink(missing_ok=True)
        return f"it is logged in again, with the address {own['address']}"
    return said or "control does not show it online"
