"""Why a machine was given up: what kind of failure, in one word."""

from __future__ import annotations

from enum import StrEnum


class FailureCause(StrEnum):
    """The kind of failure. What follows from each is in `meshd.plan.causes`."""

    NONE = ""
    """It did not fail."""
    NO_CAPACITY = "no_capacity"
    """The cloud took the order and ended the machine: it has no room for it."""
    QUOTA = "quota_exceeded"
    """The same, since the account may not have more."""
    PREEMPTED = "preempted"
    """The cloud took the spot machine back."""
    IMAGE = "image"
    """The cloud could not start it from its image, its disk or its key."""
    SCRIPT = "script"
    """It powered itself off, or its start command ended, before it joined."""
    TAILNET = "tailnet"
    """It was never seen on the tailnet."""
    NO_IPV4 = "no_ipv4"
    """The tailnet gives it no IPv4 address. One such failure stops the pool."""
    AUTH_KEY = "auth_key"
    """The auth key that all machines share is dead."""
    AGENT = "agent"
    """It is on the tailnet, and its node agent never asked to join."""
    ADMISSION = "admission"
    """It asked to join and may not: other GPUs than rented, a Slurm that does not fit."""
    CONFIGURE = "configure"
    """munge was not proved, or Slurm did not take its line."""
    TEST = "test"
    """slurmd was started, and Slurm does not show the node up."""
    UNFIT = "unfit"
    """It was READY, and became unfit: another was rented in its place."""
    ENDED = "ended"
    """Its cloud ended it, or does not list it any more, and gives no reason that meshd knows."""
    UNKNOWN = "unknown"
    """None of these, or it failed before causes were kept."""
