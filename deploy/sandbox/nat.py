"""The NAT that a pod is behind, as on a Docker host: out to everything, in by mapped TCP ports only.

A pod has two network namespaces: its own, with `eth0`, and its router's, with `host0` on the sandbox's bridge.
"""

from __future__ import annotations

from collections.abc import Mapping

from deploy.sandbox import proc
from deploy.sandbox.iproute import batch, ip
from deploy.sandbox.presence import NETNS

INTERFACE = "eth0"
ADDRESS = "172.17.0.2"
"""Inside, each pod has the address of the first container of a Docker host."""
_ROUTER = "172.17.0.1"
_BITS = 16
_INNER = "pod0"
_LINK_LOCAL = "169.254.0.0/16"
_TIMEOUT_S = 20.0


def rules(public: Mapping[int, int], *, hard: bool = False) -> str:
    """The router's rules for nft(8).

    Clouds of pods have no metadata service; the sandbox's serves all machines on the bridge.

    An answer comes in to the port that the pod sent from, and only from the place that it sent to: UDP between two pods
    takes a hole punched from both sides.

    Args:
        public: TCP ports by their number outside, each with its number inside.
        hard: whether each destination sees another port; else the port stays, where it is free.
    """
    mapped = "".join(
        f'        iifname "host0" tcp dport {outside} dnat to {ADDRESS}:{inside}\n'
        for outside, inside in sorted(public.items())
    )
    return f"""\
table ip pod {{
    chain inbound {{
        type nat hook prerouting priority -100;
{mapped}    }}
    chain outbound {{
        type nat hook postrouting priority 100;
        oifname "host0" masquerade{" fully-random" if hard else ""}
    }}
    chain through {{
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname "{_INNER}" ip daddr {_LINK_LOCAL} reject
        iifname "{_INNER}" accept
        ct status dnat accept
    }}
    chain router {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        icmp type echo-request accept
    }}
}}
"""


async def put_behind(router: str, pod: str, public: Mapping[int, int], *, hard: bool) -> None:
    """Make the namespace `pod`, behind NAT in the namespace `router`, which is on the bridge already.

    Raises:
        CommandError: the kernel refused.
    """
    await ip(["netns", "add", pod])
    await batch(
        router,
        [
            f"link add {_INNER} type veth peer name {INTERFACE} netns {pod}",
            f"addr add {_ROUTER}/{_BITS} dev {_INNER}",
            f"link set {_INNER} up",
        ],
    )
    await batch(
        pod,
        [
            "link set lo up",
            f"addr add {ADDRESS}/{_BITS} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route add default via {_ROUTER}",
        ],
    )
    forward = "echo 1 >/proc/sys/net/ipv4/ip_forward; exec nft -f -"
    enter = ["nsenter", f"--net={NETNS / router}", "--", "sh", "-ec", forward]
    await proc.run(enter, timeout_s=_TIMEOUT_S, stdin=rules(public, hard=hard).encode())
