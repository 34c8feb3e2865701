"""PURE: the time that a cloud bills for a machine. It is the real time, rounded up to the provider's increment."""

from __future__ import annotations

import math

from meshd.provider_api import ProviderCapabilities

_NOISE_S = 1e-6
"""Clocks count microseconds: a machine of exactly one minute is not billed for two."""


def billed_s(run_s: float, capabilities: ProviderCapabilities) -> float:
    """For how many seconds a machine is billed that existed for `run_s` seconds; 0 for one that never existed."""
    if run_s <= 0:
        return 0.0
    increment_s = max(capabilities.billing_increment_s, 1.0)
    whole = math.ceil((run_s - _NOISE_S) / increment_s) * increment_s
    return max(whole, capabilities.billing_minimum_s)


def paid_for_s(run_s: float, capabilities: ProviderCapabilities) -> float:
    """How many more seconds are paid for already of a machine that exists for `run_s` seconds: they are free.

    Of one that begins only in the future, by a head's clock that is behind its cloud's, none is known to be.
    """
    return max(billed_s(run_s, capabilities) - max(run_s, 0.0), 0.0)
