"""Plans and applies init on an image."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from meshd.cli import init_input
from meshd.config import Settings
from meshd.runtime.rootfs import RootFs
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitPlan

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ADDRESS = "100.64.0.1"


def settings(**slurm: str) -> Settings:
    return Settings.model_validate({"pools": {"a100": {"gpu": "a100"}}, "slurm": slurm})


def plan_of(root: Path) -> InitPlan:
    return plan_init(init_input.read_input(settings(), ADDRESS, RootFs(root)))


def init(root: Path) -> dict[PurePosixPath, Path]:
    return apply_init(plan_of(root), NOW, RootFs(root))
