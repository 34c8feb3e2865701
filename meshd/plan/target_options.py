"""The options of a target as people write them, and which of them hold on with the next one. PURE."""

from __future__ import annotations

from dataclasses import replace

from meshd.model.desired import Target

OPTIONS = (
    "provider", "gpu", "gpus_per_node", "regions", "spot", "spread", "max_usd_per_gpu_hour", "max_usd_per_hour",
    "overshoot_max_gpus",
)  # fmt: skip
"""The fields of a Target that narrow what the pool allows."""

_WRITTEN = {
    "regions": "region", "max_usd_per_gpu_hour": "max-price", "max_usd_per_hour": "max-total",
    "overshoot_max_gpus": "max-overshoot", "gpus_per_node": "gpus-per-node",
}  # fmt: skip


def written(field: str) -> str:
    """The option behind a field: `--max-price`."""
    return f"--{_WRITTEN.get(field, field)}"


def options_of(target: Target) -> tuple[str, ...]:
    """The options that a target has, as they are written on a command line."""
    return tuple(word for field in OPTIONS if (word := _word(field, getattr(target, field))))


def is_set(target: Target, field: str) -> bool:
    """Whether a target has this option."""
    return bool(_word(field, getattr(target, field)))


def with_option(target: Target, field: str, other: Target) -> Target:
    """The target with an option of another one."""
    return replace(target, **{field: getattr(other, field)})


def _word(field: str, value: object) -> str:
    if value is None or value is False or value in ("", ()):
        return ""
    if value is True:
        return written(field)
    if isinstance(value, tuple):
        return " ".join(f"{written(field)} {one}" for one in value)
    return f"{written(field)} {value:g}" if isinstance(value, float) else f"{written(field)} {value}"
