"""A tailscaled as 1.102 was measured: what a dead auth key and a deleted device do to it, and what brings it back."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.unit.node.standins import program

REFUSED = "You are logged out. The last login error was: invalid key: API key does not exist"
UNREACHED = 'You are logged out. The last login error was: fetch control key: Get "https://c/key": dial tcp: timeout'


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    owner: Tailscaled


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def address_string(self) -> str:
        return "local"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        owner, asked = self.server.owner, urlsplit(self.path)
        if asked.path.endswith("/whois"):
            self._whois(dict(parse_qsl(asked.query))["addr"])
            return
        self._answer(owner.prefs if self.path.endswith("/prefs") else owner.status())

    def _whois(self, address: str) -> None:
        owner = self.server.owner
        owner.whois.append(address)
        if address not in owner.peers:
            self.send_error(404, "no match for IP:port")
            return
        key = f"nodekey:{address}" if len(owner.whois) >= owner.knows_new_key_at else "nodekey:old"
        self._answer({"Node": {"Key": key}})

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        self.server.owner.pinged.append(f"{asked['type']} {asked['ip']}")
        if asked["ip"] in self.server.owner.pongs:
            self._answer(self.server.owner.pong(asked["ip"]))
            return
        well = self.server.owner.peers[asked["ip"]]
        self._answer({"IP": asked["ip"]} if well else {"Err": "no matching peer"})

    def _answer(self, page: dict[str, Any]) -> None:
        body = json.dumps(page).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Tailscaled:
    """Its LocalAPI on a socket, with programs `tailscale` and `systemctl` that reach it.

    Attributes:
        cures: what brings the login back: "empty" (a login with an empty key), "restart", "key" (with a stored one),
            "up" (without a key).
        deleted: the control server does not know the device any more.
        away: the control server does not answer.
        peers: those that it talks to, by address, and whether they answer a ping.
        pongs: by address, the answers to its next pings; the last one stays. Its kind is "direct", "derp" or "silent".
        pinged: the pings that it was asked for.
        whois: the addresses that it was asked about.
        knows_new_key_at: the number of the question about a peer from which on it knows its new node key.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefs = {"ControlURL": "https://control", "Hostname": "mesh-h100-1-k7q2mz", "CorpDNS": False}
        self.backend = "Running"
        self.health: list[str] = []
        self.cures: set[str] = set()
        self.deleted = self.away = False
        self.auth_url = ""
        self.address = "100.64.0.7"
        self.peers: dict[str, bool] = {}
        self.pongs: dict[str, list[str]] = {}
        self.pinged: list[str] = []
        self.whois: list[str] = []
        self.knows_new_key_at = 1
        self._logins = 1
        for name in ("bin", "run/tailscale"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("tailscale", "systemctl"):
            program(root / "bin", name, f'echo "{name} $*" >>{root}/calls\n')
        self._seen = 0
        self._server = _Server(str(root / "run/tailscale/tailscaled.sock"), _Handler)
        self._server.owner = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def calls(self) -> list[str]:
        """What was run, each time, without the socket."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [" ".join(word for word in line.split() if not word.startswith("--socket=")) for line in lines]

    def status(self) -> dict[str, Any]:
        """ipnstate.Status after all that was run."""
        for call in self.calls()[self._seen :]:
            self._seen += 1
            if "--force-reauth" in call and "key" in self.cures:
                self._logins += 1
            if "--auth-key=file:/dev/null" in call and "empty" in self.cures:
                self.health = []
            restarted = "restart tailscaled" in call or (call.startswith("s6-svc") and " -u " in call)
            if restarted and "restart" in self.cures:
                self.health = []
            if call.startswith("tailscale up") and "auth-key" not in call and "up" in self.cures:
                self.backend = "Running"
            with_key = "tailscale.key" in call or "tailscale.spare.key" in call
            if with_key and "key" in self.cures:
                self.backend = "Running"
            if call.startswith("tailscale up") and self.away:
                self.health = [UNREACHED]
            elif call.startswith("tailscale up") and self.deleted:
                self._register(with_key=with_key)
        well = self.backend == "Running" and not self.health and not self.deleted and not self.away
        return {
            "BackendState": self.backend, "HaveNodeKey": True, "Health": self.health, "AuthURL": self.auth_url,
            "TailscaleIPs": None if self.deleted and self.backend == "NeedsLogin" else [self.address],
            "Self": {"Online": well, "PublicKey": f"nodekey:{self._logins}"},
            "Peer": {
                "nodekey:a": {"Active": False, "TailscaleIPs": ["100.64.0.99"]},
                **{f"nodekey:{ip}": {"Active": True, "TailscaleIPs": [ip, "fd7a:115c:a1e0::1"]} for ip in self.peers},
            },
        }  # fmt: skip

    def pong(self, address: str) -> dict[str, Any]:
        """ipnstate.PingResult; a peer that is silent is not one that tailscaled knows, so that no test has to wait."""
        kinds = self.pongs[address]
        kind = kinds.pop(0) if len(kinds) > 1 else kinds[0]
        found: dict[str, Any] = {"IP": address, "Err": "", "LatencySeconds": 0.001, "Endpoint": "", "PeerRelay": "",
                                 "DERPRegionID": 0, "DERPRegionCode": ""}  # fmt: skip
        if kind == "silent":
            return {**found, "Err": "no matching peer"}
        if kind == "derp":
            return {**found, "LatencySeconds": 0.05, "DERPRegionID": 4, "DERPRegionCode": "fra"}
        return {**found, "Endpoint": "198.51.100.7:41641"}

    def _register(self, *, with_key: bool) -> None:
        """What control answers to a device that was deleted: it wants a login; a good key makes another device."""
        self.auth_url = "" if with_key else "https://control/a/1"
        if with_key and "key" in self.cures:
            self.deleted, self.health, self.address = False, [], "100.64.0.8"
        elif with_key:
            self.health = [REFUSED]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
