"""The agent's state across restarts and reboots: one small file, and the node token in another, both 0600.

The token has a file of its own, so that a machine with lost or damaged state can still identify itself: its join token
is no longer valid once it was a node.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .files import read_json, read_secret, write_atomic

KEPT_RESULTS = 64


@dataclass
class State:
    """Attributes:
    node_token: the token for calls to the head; saved in its own file.
    address: this machine's tailnet address, as the head sees it.
    slurm_settings: settings in force at the head that a machine's kernel may not allow: see `slurm_local`.
    spot_cloud: the cloud whose notices are read, since this is a spot machine of it; "" for no notices.
    slurmd_wanted: the head has sent start_slurmd; the agent starts slurmd by itself after a reboot.
    done: results of the last commands, by id, so that a command delivered twice runs once.
    """

    node_token: str = ""
    slot: str = ""
    address: str = ""
    cluster: str = ""
    conf_server: str = ""
    slurmd_args: list[str] = field(default_factory=list)
    slurm_settings: dict[str, str] = field(default_factory=dict)
    slurm_uid: int = -1
    slurm_gid: int = -1
    munge_uid: int = -1
    munge_gid: int = -1
    poll_hold_s: float = 25.0
    dead_man_s: float = 3600.0
    roster_version: int = 0
    spot_cloud: str = ""
    slurmd_wanted: bool = False
    left: bool = False
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def joined(self) -> bool:
        """Whether the head has accepted this machine, and its answer is saved."""
        return bool(self.node_token and self.slot)

    def remember(self, command_id: str, result: dict[str, Any]) -> None:
        """Keep a command's result, and drop the oldest above KEPT_RESULTS."""
        self.done[command_id] = result
        while len(self.done) > KEPT_RESULTS:
            del self.done[next(iter(self.done))]


def load(path: Path, token_path: Path) -> State:
    """The saved state; a new one when there is none. An older agent kept the token in the state."""
    saved = read_json(path)
    known = {one.name for one in fields(State)}
    try:
        state = State(**{name: value for name, value in saved.items() if name in known})
    except TypeError:
        state = State()
    state.node_token = read_secret(token_path) or state.node_token
    return state


def save(path: Path, token_path: Path, state: State) -> None:
    """Save the state durably, the token first: the rest is useless without it. A machine that left keeps no token.

    Raises:
        OSError: it cannot be written; the old state is still there.
    """
    if state.left:
        token_path.unlink(missing_ok=True)
    elif state.node_token and read_secret(token_path) != state.node_token:
        write_atomic(token_path, state.node_token.encode() + b"\n", 0o600)
    write_atomic(path, json.dumps({**asdict(state), "node_token": ""}, separators=(",", ":")).encode(), 0o600)
