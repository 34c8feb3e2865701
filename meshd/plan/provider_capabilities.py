"""What a provider's capabilities mean: in words for people, and what meshd refuses because of them. PURE.

A pod is a machine without systemd: a container. Most pods have no TUN device either. The two facts are independent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from meshd.model.machine import Machine
from meshd.provider_api import MachineKind, ProviderCapabilities

WITHOUT_SYSTEMD = "no systemd and, as a rule, no cgroups, so Slurm cannot hold jobs to their memory, CPUs and GPUs"
WITHOUT_TUN = (
    "no TUN device, so jobs reach other nodes by TCP alone, not by UDP, often through relays; NCCL between nodes is "
    "untested"
)


def rents_pods(capabilities: ProviderCapabilities) -> bool:
    """Whether the provider's machines are pods."""
    return not capabilities.systemd


def is_pod(machine: Machine, pod_providers: Collection[str]) -> bool:
    """Whether a machine is a pod. What its agent reported wins over what its provider says of its machines."""
    reported = machine.facts.systemd if machine.facts is not None else None
    return machine.provider in pod_providers if reported is None else not reported


def limits(*, systemd: bool, tun: bool) -> str:
    """What jobs cannot do where these are missing, for people; "" when nothing is missing."""
    return "; ".join(text for there, text in ((systemd, WITHOUT_SYSTEMD), (tun, WITHOUT_TUN)) if not there)


def limits_of(machine: Machine, pod_limits: Mapping[str, str]) -> str:
    """What jobs cannot do on a machine, for people: by its agent's report, or else by what its provider says."""
    facts = machine.facts
    if facts is None or facts.systemd is None:
        return pod_limits.get(machine.provider, "")
    parts = [f"jobs lack {lacking(machine.lacks)} (docs/slurm.md)"] if machine.lacks else []
    return "; ".join([*parts, WITHOUT_TUN] if facts.tun is False else parts)


def lacking(codes: Collection[str]) -> str:
    """`Machine.lacks` for people: "process tracking, core limits"."""
    return ", ".join(codes).replace("_", " ")


def description(capabilities: ProviderCapabilities) -> str:
    """The provider's machines and their limits, for people: "virtual machines; on demand and spot"."""
    container = "pods" if rents_pods(capabilities) else "containers"
    parts = [container if capabilities.machine_kind is MachineKind.CONTAINER else "virtual machines"]
    if lacks := limits(systemd=capabilities.systemd, tun=capabilities.tun):
        parts.append(lacks)
    if capabilities.spot:
        parts.append("on demand and spot")
    if not capabilities.tags:
        parts.append(
            "no tags: meshd knows machines by their names, so no other cluster of the account may have this name"
        )
    return "; ".join(parts)


def user_data_refusal(text: str, provider: str, capabilities: ProviderCapabilities) -> str:
    """Why this user data cannot be sent; "" when it can."""
    size_b = len(text.encode())
    if size_b <= capabilities.user_data_max_b:
        return ""
    return f"the machine's user data has {size_b} bytes, and {provider} takes at most {capabilities.user_data_max_b}"
