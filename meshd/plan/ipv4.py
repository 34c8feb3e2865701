"""PURE: a tailnet that gives no IPv4 addresses. Slurm's files hold IPv4 addresses only, so nothing is rented for it.

Tailscale's policy can switch them off (the node attribute `disable-ipv4`), and headscale's configuration can leave out
`prefixes.v4`.
"""

from __future__ import annotations

from meshd.model.observed import TailnetView

NO_IPV4 = "the tailnet gives this machine no IPv4 address, and Slurm's files need one"
NO_IPV4_HEAD = "the tailnet gives the head no IPv4 address, and Slurm's files need one"
NO_IPV4_CURE = (
    "take the node attribute `disable-ipv4` out of the tailnet's policy (headscale: set `prefixes.v4`); "
    "afterwards `tailscale ip -4` must show an address on the head"
)


def head_without_ipv4(view: TailnetView) -> str:
    """Why this tailnet cannot carry the cluster; "" when it can. Only a healthy view is believed."""
    return NO_IPV4_HEAD if view.healthy and not view.self_ipv4 else ""


def machines_without_ipv4(view: TailnetView, names: frozenset[str]) -> tuple[str, ...]:
    """The machines of ours that are online and have no IPv4 address.

    Args:
        view: the tailnet.
        names: host names of our machines.
    """
    return tuple(sorted(p.hostname for p in view.peers.values() if p.online and not p.ipv4 and p.hostname in names))
