"""tailscaled on this machine: queries of its LocalAPI, and `tailscale up` with all earlier settings."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from .errors import NodeError, NotPossible
from .tools import run

ANSWER_MAX = 16 * 1024 * 1024
ASK_S = 10.0
_HOST = "local-tailscaled.sock"


class TailscaleFault(NodeError):
    """tailscaled does not answer, or a request to it failed."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, within_s: float) -> None:
        super().__init__(_HOST, timeout=within_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Tailscale:
    """One tailscaled, by its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> dict[str, Any]:
        """ipnstate.Status, without peers.

        Raises:
            TailscaleFault: it does not answer.
        """
        return self._get("status?peers=false")

    def peers_in_use(self) -> list[str]:
        """IPv4 addresses of the peers with traffic in the last minutes. Raises TailscaleFault."""
        peers = self._get("status").get("Peer") or {}
        found = [peer for peer in peers.values() if peer.get("Active") is True]
        return [str(address) for peer in found for address in peer.get("TailscaleIPs") or [] if "." in str(address)]

    def key_of(self, address: str) -> str:
        """A peer's node key; "" when no peer has that address, or tailscaled does not answer."""
        try:
            node = self._get(f"whois?addr={address}").get("Node")
        except TailscaleFault:
            return ""
        return str(node.get("Key") or "") if isinstance(node, dict) else ""

    def prime_session(self, address: str, within_s: float = ASK_S) -> bool:
        """Open the path to a peer (a disco ping), then send it one packet through WireGuard (a TSMP ping).

        The packet starts a session if there is none. The path comes first: a handshake without a path is lost, and is
        not repeated for 5 s.

        Args:
            address: the peer's.
            within_s: for each of the two answers.

        Returns:
            Whether the peer answered both.
        """
        try:
            return all(
                not self._ask("POST", f"ping?ip={address}&type={kind}", within_s).get("Err")
                for kind in ("disco", "TSMP")
            )
        except TailscaleFault:
            return False

    def ping(self, address: str, within_s: float) -> dict[str, Any]:
        """The answer to a disco ping (ipnstate.PingResult). Raises TailscaleFault, also when none comes in time."""
        return self._ask("POST", f"ping?ip={address}&type=disco", within_s)

    def prefs(self) -> dict[str, Any]:
        """ipn.Prefs. Raises TailscaleFault."""
        return self._get("prefs")

    def up(self, *words: str, timeout_s: float) -> str:
        """Run `tailscale up` with all earlier settings. Returns its error, or "".

        "" does not prove success: check `status`. Raises ToolMissing and ToolTimeout.
        """
        argv = ["tailscale", f"--socket={self._path}", "up", *flags(self.prefs()), *words]
        result = run(argv, timeout_s, check=False)
        return " ".join((result.stderr or result.stdout).split())[-400:] if result.returncode else ""

    def _get(self, page: str) -> dict[str, Any]:
        return self._ask("GET", page, ASK_S)

    def _ask(self, method: str, page: str, within_s: float) -> dict[str, Any]:
        connection = _Connection(self._path, within_s)
        try:
            connection.request(method, f"/localapi/v0/{page}")
            answer = connection.getresponse()
            body = answer.read(ANSWER_MAX)
            value = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TailscaleFault(
                f"tailscaled does not answer on {self._path}: {error or type(error).__name__}"
            ) from None
        finally:
            connection.close()
        if answer.status != 200 or not isinstance(value, dict):
            raise TailscaleFault(f"tailscaled answered {page} with {answer.status}")
        return value


def flags(prefs: dict[str, Any]) -> list[str]:
    """The flags for the present settings: `tailscale up` refuses to run when one that is not the default is missing.

    Source: tailscale 1.102 cmd/tailscale/cli/up.go, without settings that a node cannot have.

    Raises:
        NotPossible: there are no preferences: this machine was never logged in.
    """
    if "ControlURL" not in prefs:
        raise NotPossible("tailscaled has no preferences", "`tailscale up` was never run here")
    words = [f"--accept-dns={_bool(prefs.get('CorpDNS'))}"]
    texts = {"ControlURL": "login-server", "Hostname": "hostname", "OperatorUser": "operator"}
    words += [f"--{flag}={prefs[name]}" for name, flag in texts.items() if prefs.get(name)]
    switches = {
        "RouteAll": "accept-routes",
        "ShieldsUp": "shields-up",
        "RunSSH": "ssh",
        "ExitNodeAllowLANAccess": "exit-node-allow-lan-access",
    }
    words += [f"--{flag}" for name, flag in switches.items() if prefs.get(name)]
    exit_node = prefs.get("ExitNodeIP") or prefs.get("ExitNodeID")
    if exit_node:
        words.append(f"--exit-node={exit_node}")
    if prefs.get("AdvertiseTags"):
        words.append("--advertise-tags=" + ",".join(prefs["AdvertiseTags"]))
    routes = [str(route) for route in prefs.get("AdvertiseRoutes") or []]
    if "0.0.0.0/0" in routes and "::/0" in routes:
        words.append("--advertise-exit-node")
        routes = [route for route in routes if route not in ("0.0.0.0/0", "::/0")]
    if routes:
        words.append("--advertise-routes=" + ",".join(routes))
    if (prefs.get("AppConnector") or {}).get("Advertise"):
        words.append("--advertise-connector")
    if prefs.get("NoSNAT"):
        words.append("--snat-subnet-routes=false")
    if prefs.get("NoStatefulFiltering") is False:
        words.append("--stateful-filtering")
    mode = {0: "off", 1: "nodivert"}.get(prefs.get("NetfilterMode", 2))
    if mode:
        words.append(f"--netfilter-mode={mode}")
    return words


def _bool(value: Any) -> str:
    return "true" if value else "false"
