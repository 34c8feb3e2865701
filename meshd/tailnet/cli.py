"""The tailscale program, for one-off questions and the one setting that needs root. LocalApi is faster."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from meshd.errors import CommandError, CommandNotFound, CommandTimeout, TailnetError
from meshd.model.observed import TailnetPeer, TailnetView
from meshd.runtime.run import Result, Runner
from meshd.tailnet.status import parse_status, parse_whois

DEFAULT_TIMEOUT_S = 10.0


def operator_hint(user: str) -> str:
    """The command that lets `user` steer tailscaled without being root; root runs it once."""
    return f"tailscale set --operator={user}"


class TailscaleCli:
    """Runs `tailscale --socket=...`. Every method raises TailnetError, with what to do, and nothing else.

    Args:
        run: the one way to run programs.
        socket: tailscaled's LocalAPI.
        timeout_s: deadline of each call.
    """

    def __init__(self, run: Runner, socket: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._run = run
        self._socket = socket
        self._timeout_s = timeout_s

    async def status(self) -> TailnetView:
        """The tailnet as tailscaled knows it now; peers' `online` is the control server's opinion."""
        return parse_status((await self._call("status", "--json")).stdout).view()

    async def ip4(self) -> str:
        """This machine's tailnet IPv4 address."""
        address = (await self._call("ip", "-4")).stdout.strip()
        try:
            return str(ipaddress.IPv4Address(address))
        except ValueError as error:
            raise TailnetError(f"tailscale ip -4 gave no address: is this machine logged in? {error}") from error

    async def whois(self, address: str) -> TailnetPeer:
        """The device behind `IP` or `IP:port`; with userspace networking the port of the proxied connection counts."""
        return parse_whois((await self._call("whois", "--json", address)).stdout)

    async def version(self) -> str:
        """The client's version, e.g. "1.102.5"."""
        first = (await self._call("version")).stdout.partition("\n")[0].strip()
        match = re.match(r"\d+(\.\d+)+", first)
        if match is None:
            raise TailnetError("tailscale version gave no version number")
        return match[0]

    async def _call(self, *arguments: str) -> Result:
        try:
            return await self._run(["tailscale", f"--socket={self._socket}", *arguments], timeout_s=self._timeout_s)
        except CommandNotFound as error:
            raise TailnetError("tailscale is not installed on this machine: https://tailscale.com/download") from error
        except CommandTimeout as error:
            raise TailnetError(f"tailscale {arguments[0]} did not answer within {self._timeout_s:g} s") from error
        except CommandError as error:
            raise TailnetError(_explain(arguments[0], error.stderr, self._socket)) from error


def _explain(command: str, stderr: str, socket: Path) -> str:
    said = stderr.strip()[-300:] or "no message"
    lower = said.lower()
    if "doesn't appear to be running" in lower or "failed to connect to local tailscaled" in lower:
        return f"tailscaled does not answer on {socket}: systemctl start tailscaled ({said})"
    if "access denied" in lower or "operator" in lower:
        return f"tailscaled denies `tailscale {command}`: as root, for meshd's user: {operator_hint('USER')} ({said})"
    if "peer not found" in lower or "no match for ip" in lower:
        return f"no such device on the tailnet ({said})"
    return f"tailscale {command}: {said}"
