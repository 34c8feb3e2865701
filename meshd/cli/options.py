"""How a request's fields are called on the command line, for errors that speak the user's words."""

from __future__ import annotations

_ARGUMENTS = {"machine": "MACHINE", "subject": "MACHINE|SLOT|POOL", "providers": "PROVIDER"}
_OPTIONS = {
    "spot": "--spot or --on-demand",
    "regions": "--region",
    "max_usd_per_gpu_hour": "--max-price",
    "max_usd_per_hour": "--max-total",
    "overshoot_max_gpus": "--max-overshoot",
    "gpu_memory_min_gib": "--min-vram",
    "leaked_at": "--since",
}


def option_of(field: str) -> str:
    """The option or argument that a field of a request comes from: `max_usd_per_gpu_hour` from `--max-price`."""
    return _ARGUMENTS.get(field) or _OPTIONS.get(field) or f"--{field.replace('_', '-')}"
