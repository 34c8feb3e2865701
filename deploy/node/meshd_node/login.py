"""This machine's login on the tailnet: does the control server accept it, and how does the agent restore it?

Facts, measured with tailscale 1.102. A dead auth key for a machine with a good login leaves a "zombie": `tailscale up`
exits with 0, BackendState stays Running and the data plane works, but control is lost and tailscaled retries the dead
key without end. The old node key stays on disk until control accepts a new one: a login with an empty key, or a
restart, restores it. `up` with all settings and without a key does not.

A device that was deleted while its machine runs is offline at once, like one whose control server is away: Running,
Self.Online false, and no message in Health for hours. Only a login with an empty key distinguishes the two. It does
not harm a good login (same device, no packet lost, also while control is away); a control server that has deleted the
device answers with an AuthURL. The stored key then makes a new device with a new address, in 0.3 to 2.6 s. After a
restart of tailscaled the deleted device is NeedsLogin. A machine that joined with a key of its own has a spare key for
this, for one use: the agent removes it after use, and the head sends another.
"""

from __future__ import annotations

import time
from typing import Any

from .node import Node
from .tailscale import Tailscale, TailscaleFault

RECOVER_S = 20.0
DELETED = "the control server no longer knows its device"
EXPIRED = "its node key has expired"
SWITCHED_OFF = "tailscale was switched off here"
SILENT = "it is not connected to the control server, which does not say why"
STEP_S = 0.02
EMPTY_KEY = "file:/dev/null"
EMPTY_UP_S = 2
"""How long `tailscale up` itself waits. Where control wants a login, waiting is useless; otherwise tailscaled continues
the login, and its status shows the result."""
_UNREACHED = (
    "fetch control key", "dial tcp", "connection refused", "connection reset", "no such host", "timeout",
    "deadline exceeded", "unreachable", "unexpected eof", "tls:", "x509:",
)  # fmt: skip
"""Parts of Go's error texts for an unreachable control server: tailscaled retries, and control refused no login."""


def login_errors(status: dict[str, Any]) -> list[str]:
    """The login errors in tailscaled's Health."""
    return [str(line) for line in status.get("Health") or [] if "login error" in str(line).lower()]


def online(status: dict[str, Any]) -> bool:
    """Whether control shows this machine online without a login error. Running, or `up` with code 0, prove nothing."""
    own = status.get("Self") or {}
    return status.get("BackendState") == "Running" and own.get("Online") is True and not login_errors(status)


def refused_login(status: dict[str, Any]) -> str:
    """The error with which control refuses the login of a machine that looks Running; "" without one.

    An unreachable control server is no refusal.
    """
    own = status.get("Self") or {}
    if status.get("BackendState") not in ("Running", "Starting") or own.get("Online") is True:
        return ""
    refusals = [line for line in login_errors(status) if not any(word in line.lower() for word in _UNREACHED)]
    return refusals[0] if refusals else ""


def login_wanted(status: dict[str, Any]) -> bool:
    """Whether control wants a login although there is a node key: the device was deleted, or the key has expired."""
    if status.get("HaveNodeKey") is not True:
        return False
    offline = (status.get("Self") or {}).get("Online") is not True
    return status.get("BackendState") == "NeedsLogin" or (offline and bool(status.get("AuthURL")))


def login_fault(status: dict[str, Any]) -> str:
    """The fault of this login that the agent can repair, for people; "" without one."""
    own = status.get("Self") or {}
    if login_wanted(status):
        expired = status.get("BackendState") == "NeedsLogin" and bool(status.get("TailscaleIPs"))
        return EXPIRED if expired else DELETED
    if status.get("BackendState") == "Stopped" and status.get("HaveNodeKey") is True:
        return SWITCHED_OFF
    running = status.get("BackendState") == "Running" and status.get("HaveNodeKey") is True
    if running and own.get("Online") is False and not login_errors(status):
        return SILENT
    return refused_login(status)


def device(status: dict[str, Any]) -> dict[str, str]:
    """This device's node key and IPv4 address."""
    own = status.get("Self") or {}
    addresses = [str(one) for one in status.get("TailscaleIPs") or [] if "." in str(one)]
    return {"key": str(own.get("PublicKey", "")), "address": addresses[0] if addresses else ""}


def until_online(
    tailscale: Tailscale, old_key: str, within_s: float, *, or_login_wanted: bool = False
) -> dict[str, str] | None:
    """Wait until this device is online with another key than the old one, and return it; None after the deadline.

    With `or_login_wanted` it returns None as soon as control wants a login.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            status = tailscale.status()
            own = device(status)
            if online(status) and own["key"] != old_key:
                return own
            if or_login_wanted and login_wanted(status):
                return None
        except TailscaleFault:  # tailscaled is restarting
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return None
        time.sleep(STEP_S)


def recover(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Restore the old login after a failed one, or log in again where control wants it. Returns what helped, as text.

    While control is away it tries only an empty key: that distinguishes this case from a deleted device.

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
    refused = refused_login(status)
    tailscale.up(f"--auth-key={EMPTY_KEY}", "--accept-risk=lose-ssh", f"--timeout={EMPTY_UP_S}s", timeout_s=30.0)
    if until_online(tailscale, "", within_s, or_login_wanted=True) is not None:
        return "the old login is back"
    if login_wanted(tailscale.status()):
        return renew(node, tailscale, within_s)
    if not refused:
        return "the control server does not answer"
    node.tailscaled.restart()
    if until_online(tailscale, "", within_s) is not None:
        return "the old login is back after a restart of tailscaled"
    return "and the old login is not back: the machine is not connected to the control server"


def switch_on(tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Run `tailscale up` after a `tailscale down`, with all earlier settings. Returns the result, for people.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout: tailscaled does not answer, or does not end.
    """
    said = tailscale.up("--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    if until_online(tailscale, "", 1.0 if said else within_s) is not None:
        return "it is switched on again"
    return said or "control does not show it online"


def renew(node: Node, tailscale: Tailscale, within_s: float = RECOVER_S) -> str:
    """Log in with the stored auth key, or the spare key, where control wants a login. Returns the result, for people.

    After an expired node key the device and its address stay the same. A deleted device comes back as another device
    with another address.

    Raises:
        TailscaleFault, ToolMissing, ToolTimeout: tailscaled does not answer, or does not end.
    """
    paths = node.paths
    key = paths.auth_key if paths.auth_key.exists() else paths.spare_key
    if not key.exists():
        return (
            "no auth key is kept here, nor a spare one, and the head cannot be reached for one: the head gives the "
            "machine back, or `tailscale up` by hand with a new key"
        )
    said = tailscale.up(f"--auth-key=file:{key}", "--accept-risk=lose-ssh", "--timeout=20s", timeout_s=30.0)
    own = until_online(tailscale, "", 1.0 if said else within_s)
    if own is not None:
        if key == paths.spare_key:
            key.unlink(missing_ok=True)
        return f"it is logged in again, with the address {own['address']}"
    return said or "control does not show it online"
