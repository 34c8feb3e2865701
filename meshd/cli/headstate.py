"""What `meshctl init` finds on the head, as the pure planner wants it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path, PurePosixPath

from meshd.config import Settings
from meshd.errors import SlurmError
from meshd.runtime.run import run
from meshd.slurm.conf import parse
from meshd.slurm.init import CGROUP_CONF, GRES_CONF, SLURM_CONF, InitInput
from meshd.slurm.init_apply import read_files
from meshd.slurm.pools import pool_lines
from meshd.tailnet.cli import TailscaleCli

DEFAULT_SLURM_USER = "slurm"


def tailnet_address(settings: Settings) -> str:
    """The head's tailnet IPv4 address.

    Raises:
        TailnetError: tailscaled is not there or not logged in.
    """
    return asyncio.run(TailscaleCli(run, settings.tailnet.socket).ip4())


def find(settings: Settings, address: str, root: Path) -> InitInput:
    """Everything that the plan is made from.

    Raises:
        SlurmError: a file cannot be read.
    """
    conf_dir = PurePosixPath(settings.slurm.conf_dir)
    there = root / conf_dir.relative_to("/")
    try:
        texts, links = read_files(there)
        slurm_conf = texts.get(SLURM_CONF)
        included = {name: _text(there, name, texts) for name in parse(slurm_conf or "").includes()}
    except OSError as error:
        raise SlurmError(f"{error.filename or there} cannot be read: {error.strerror}") from error
    whole = parse("\n".join([slurm_conf or "", *(text for text in included.values() if text is not None)]))
    return InitInput(
        cluster=settings.cluster.name,
        head=socket.gethostname().partition(".")[0],
        head_address=address,
        slurm_conf=slurm_conf,
        gres_conf=texts.get(GRES_CONF),
        cgroup_conf=texts.get(CGROUP_CONF),
        included={name: text for name, text in included.items() if text is not None},
        links=links,
        pools=pool_lines(settings.pools),
        slurm_user=whole.get("SlurmUser") or DEFAULT_SLURM_USER,
        conf_dir=conf_dir,
        former_dir=PurePosixPath(settings.cluster.state_dir) / "slurm",
    )


def _text(conf_dir: Path, name: str, texts: dict[str, str]) -> str | None:
    """An included file; None when it is not there (yet), as our own before the first init."""
    if name in texts:
        return texts[name]
    path = conf_dir / name
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None
