"""Closes the cloud's metadata service to all users but root: it serves the user data, which holds secrets.

EC2 and GCE serve it at 169.254.169.254, and at fd00:ec2::254 and fd20:ce::254. The rules close TCP only, without port
53, since GCE's resolver has the same address. `skuid` and `owner` are the kernel's own user ids: root of a user
namespace counts as the user who made it. Packets from containers are forwarded and have no owner: the rules drop them
too.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from pathlib import Path

from . import tools
from .errors import NodeError

IPV4 = "169.254.169.254"
IPV6 = ("fd00:ec2::254", "fd20:ce::254")
TABLE = "meshd_metadata"
CHAIN = "meshd-metadata"
RULE_PREFERENCE = 91
TIMEOUT_S = 20.0
PLACES = tuple((address, 80) for address in (IPV4, *IPV6))
PAGES = ("/", "/latest/user-data", "/computeMetadata/v1/instance/")
"""Every service answers one of these with something other than "not found": the first one mostly, EC2, and GCE."""
PROBE_S = 2.0
NOT_FOUND = 404
DNS = 53
LAST_UID = 4294967294
PORTS = (f"1-{DNS - 1}", f"{DNS + 1}-65534")
"""For routing rules; the kernel takes no range that ends with 65535."""

Run = Callable[[Sequence[str], float, bytes], tools.Result]


def nft_rules() -> str:
    """The input for nft: replaces the table in one transaction, whatever was in it."""
    hosts = [f"ip daddr {IPV4}", *(f"ip6 daddr {address}" for address in IPV6)]
    output = "\n".join(f"    {host} meta skuid != 0 tcp dport != {DNS} reject" for host in hosts)
    forward = "\n".join(f"    {host} tcp dport != {DNS} reject" for host in hosts)
    return f"""table inet {TABLE} {{}}
delete table inet {TABLE}
table inet {TABLE} {{
  chain output {{
    type filter hook output priority -10; policy accept;
{output}
  }}
  chain forward {{
    type filter hook forward priority -10; policy accept;
{forward}
  }}
}}
"""


def close(run: Run | None = None) -> str:
    """Close the service. Idempotent.

    Args:
        run: runs a program; raises NodeError when it is missing or fails.

    Returns:
        "" when it is closed; otherwise why not: each tool is missing or failed.
    """
    run = run or _run
    faults = []
    for name, way in (("nft", _by_nft), ("iptables", _by_iptables), ("ip", _by_ip_rule)):
        try:
            way(run)
            return ""
        except NodeError as error:
            faults.append(f"{name}: {error}")
    return "; ".join(faults)


def reopen(run: Run | None = None) -> None:
    """Take all rules of `close` away. Idempotent."""
    run = run or _run
    _works(run, ["nft", "delete", "table", "inet", TABLE])
    for program in ("iptables", "ip6tables"):
        for hook, chain in (("OUTPUT", CHAIN), ("FORWARD", f"{CHAIN}-fwd")):
            if _works(run, [program, "-w", "-D", hook, "-j", chain]):
                _works(run, [program, "-w", "-F", chain])
                _works(run, [program, "-w", "-X", chain])
    for family in ("-4", "-6"):
        while _works(run, ["ip", family, "rule", "del", "pref", str(RULE_PREFERENCE)]):
            pass


def answers(places: Sequence[tuple[str, int]] = PLACES) -> str:
    """Whether a metadata service serves anything here, and where; "" when there is none, as in most containers.

    Args:
        places: (address, port) of each service to ask.
    """
    for address, port in places:
        for page in PAGES:
            status = _status_of(address, port, page)
            if status not in (0, NOT_FOUND):
                return f"{address} answers, and this container may make no rules (no CAP_NET_ADMIN)"
            if status == 0:
                break
    return ""


def _status_of(address: str, port: int, page: str) -> int:
    """The HTTP status of a page; 0 without an answer."""
    link = http.client.HTTPConnection(address, port, timeout=PROBE_S)
    try:
        link.request("GET", page, headers={"Metadata-Flavor": "Google"})
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        link.close()


def in_place(run: Run | None = None) -> bool:
    """Whether the rules are in place: another program may have flushed them."""
    run = run or _run
    looks = (
        ["nft", "list", "table", "inet", TABLE],
        ["iptables", "-w", "-C", "OUTPUT", "-j", CHAIN],
    )
    if any(_works(run, argv) for argv in looks):
        return True
    try:
        rules = run(["ip", "-4", "rule", "list", "pref", str(RULE_PREFERENCE)], TIMEOUT_S, b"").stdout
        return len(rules.split("\n")) > len(PORTS)
    except NodeError:
        return False


def has_ipv6() -> bool:
    """Whether the kernel has IPv6; without it the IPv6 rules are not needed."""
    return Path("/proc/net/if_inet6").exists()


def _by_nft(run: Run) -> None:
    run(["nft", "-f", "-"], TIMEOUT_S, nft_rules().encode())


def _by_iptables(run: Run) -> None:
    _fill_chains(run, "iptables", [IPV4])
    if has_ipv6():
        _fill_chains(run, "ip6tables", IPV6)


def _fill_chains(run: Run, program: str, addresses: Sequence[str]) -> None:
    users = ["-m", "owner", "!", "--uid-owner", "0"]
    for hook, who in (("OUTPUT", users), ("FORWARD", [])):
        chain = CHAIN if hook == "OUTPUT" else f"{CHAIN}-fwd"
        if not _works(run, [program, "-w", "-n", "-L", chain]):
            run([program, "-w", "-N", chain], TIMEOUT_S, b"")
        run([program, "-w", "-F", chain], TIMEOUT_S, b"")
        for address in addresses:
            words = ["-d", address, "-p", "tcp", "!", "--dport", str(DNS), *who, "-j", "REJECT"]
            run([program, "-w", "-A", chain, *words], TIMEOUT_S, b"")
        if not _works(run, [program, "-w", "-C", hook, "-j", chain]):
            run([program, "-w", "-I", hook, "1", "-j", chain], TIMEOUT_S, b"")


def _by_ip_rule(run: Run) -> None:
    """Without a firewall: no route to the service for any user but root. Does not stop forwarded packets."""
    families = [("-4", [f"{IPV4}/32"]), ("-6", [f"{address}/128" for address in IPV6])]
    for family, addresses in families if has_ipv6() else families[:1]:
        while _works(run, ["ip", family, "rule", "del", "pref", str(RULE_PREFERENCE)]):
            pass
        for address in addresses:
            for ports in PORTS:
                words = ["uidrange", f"1-{LAST_UID}", "to", address, "ipproto", "tcp", "dport", ports, "prohibit"]
                run(["ip", family, "rule", "add", "pref", str(RULE_PREFERENCE), *words], TIMEOUT_S, b"")


def _works(run: Run, argv: Sequence[str]) -> bool:
    try:
        run(argv, TIMEOUT_S, b"")
    except NodeError:
        return False
    return True


def _run(argv: Sequence[str], timeout_s: float, stdin: bytes) -> tools.Result:
    return tools.run(argv, timeout_s, stdin)
