"""A machine's tailnet path to the head: what is known of it, and whether its pool accepts it. PURE.

A pool may demand a direct path. The path is tested before slurmd starts, so no job begins on a machine that fails the
test. The paths to other nodes of the pool are shown and do not count: in a large pool a node measures few of them.
"""

from __future__ import annotations

from meshd.model.desired import Policy
from meshd.model.machine import Machine
from meshd.model.path import MeasuredPath, PathKind
from meshd.plan.plan_input import ClusterView

FRESH_S = 180.0
"""An older measurement does not count. An agent measures each minute, and reports within `poll_hold_s`."""

CURE = (
    "let UDP out at both ends, and UDP 41641 in at one of them, or use a NAT that keeps its ports; "
    "`tailscale netcheck` on head and machine tells more"
)


def demands_direct(machine: Machine, policy: Policy) -> bool:
    """Whether its pool accepts only a direct path to the head."""
    return machine.pool in policy.direct_pools


def head_path(machine: Machine, view: ClusterView) -> MeasuredPath | None:
    """Its path to the head; None when its agent has not measured it lately."""
    report = view.report(machine)
    path = report.head_path if report is not None else None
    return path if path is not None and (view.now - path.at).total_seconds() <= FRESH_S else None


def relayed_words(path: MeasuredPath) -> str:
    """What a path that is not direct goes over, for people."""
    return f"the relay {path.relay or 'of DERP'}" if path.kind is PathKind.DERP else "a peer relay"


def path_fault(machine: Machine, view: ClusterView) -> str:
    """Why slurmd must not start yet, for people; "" when it may."""
    if not demands_direct(machine, view.policy):
        return ""
    path = head_path(machine, view)
    if path is None:
        return "its agent has not measured its path to the head"
    return "" if path.direct else f"its path to the head goes over {relayed_words(path)}"
