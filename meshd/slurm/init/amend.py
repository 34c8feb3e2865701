"""PURE: edits a slurm.conf so that every setting that meshd needs is in force.

All included files count. Where slurm.conf itself sets the value in force, meshd rewrites it in place. Where an included
file sets it, meshd overrides it with a line at the end of slurm.conf: other clusters may share that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.conf import Conf, parse
from meshd.slurm.init.codes import Finding, InitRefused, Refusal, Warn
from meshd.slurm.init.tree import Placed, Tree, read_tree
from meshd.slurm.init.types import SLURM_CONF, InitInput

TREE_WIDTH = 65533
SLURMD_TIMEOUT_S = 300
UNKILLABLE_TIMEOUT_S = 300
UNKILLABLE_PER_MESSAGE = 5
"""Newer Slurm requires an UnkillableStepTimeout of at least this many MessageTimeouts."""

MESSAGE_TIMEOUT_S = 30
SRUN_PORTS = "60001-63000"
KEEP_ALIVE = ("keepalivetime=60", "keepaliveinterval=30", "keepaliveprobes=10")
"""A connection is dead after 6 min without an answer. SlurmdTimeout is 5 min by default: a cut that Slurm survives
ends no step."""
CONS_TRES = "select/cons_tres"
LINEAR_IS_DEFAULT_BEFORE = SlurmVersion((23, 11))

_SHARES = ("cr_cpu", "cr_cpu_memory", "cr_core", "cr_core_memory", "cr_socket", "cr_socket_memory")
"""select/cons_tres does not start without one of them."""

_FOREVER = ("infinite", "unlimited")
_INCLUDE_LINE = re.compile(r"(include[ \t\v\f\r]+)[^ \t\n\v\f\r]+", re.IGNORECASE)


class Editor:
    """A slurm.conf under change, with the reasons so far."""

    def __init__(self, have: InitInput, text: str) -> None:
        self.have = have
        self.path = have.conf_dir / SLURM_CONF
        self.conf = parse(text)
        self.reasons: list[str] = []
        self.findings: list[Finding] = []
        self.wanted: dict[str, str] = {}
        self._texts = have.texts()
        self._tree: tuple[Conf, Tree] | None = None

    @property
    def tree(self) -> Tree:
        """All files as they would be read now."""
        if self._tree is None or self._tree[0] is not self.conf:
            texts = {**self._texts, self.path: self.conf.render()}
            self._tree = self.conf, read_tree(self.path, texts.get, self.have.version)
        return self._tree[1]

    def warn(self, code: Warn, text: str) -> None:
        """Add a finding for a person."""
        self.findings.append(Finding(code, text))

    def set(self, key: str, value: str, reason: str, *, gets: str = "") -> None:
        """Put a value in force. `gets`: the new item, where the value is a list."""
        self.wanted[key] = value
        placed = self.tree.last(key)
        if placed is not None and placed.line.value(key) == value:
            return
        over = ""
        if placed is None or placed.file == self.path:
            self.conf = self.conf.with_value(key, value)
        else:
            self.conf = self.conf.with_line(parse("").with_value(key, value).render().rstrip("\n"))
            over = f", over {placed.where}"
        self.reasons.append(f"{key} gets {gets}: {reason}{over}" if gets else f"{key}={value}: {reason}{over}")

    def add_line(self, key: str, value: str, reason: str) -> None:
        """Add one more line of a key that may occur several times."""
        self.conf = self.conf.with_line(parse("").with_value(key, value).render().rstrip("\n"))
        self.reasons.append(f"{key}={value}: {reason}")

    def add_item(self, key: str, item: str, reason: str) -> None:
        """Add an item to a comma list. It replaces an item of the same name (before `=`) and another value."""
        old = self.tree.list_of(key)
        name = item.partition("=")[0].lower()
        if any(has.lower() == item.lower() for has in old):
            self.wanted[key] = ",".join(old)
            return
        kept = [has for has in old if has.partition("=")[0].strip().lower() != name]
        self.set(key, ",".join([*kept, item]), reason, gets=item)

    def at_least(self, key: str, least: int, reason: str, *, default: int, zero_is_never: bool = False) -> None:
        """Raise a number that is too low. Warn about text that is no number, and keep it."""
        text = self.tree.get(key)
        number = default if text is None else read_number(text)
        if number is None:
            self.warn(Warn.NOT_A_NUMBER, f"{key}={text} is not a number that meshd can judge: {reason}")
        elif number < least and not (zero_is_never and number == 0):
            self.set(key, str(least), reason)

    def include_first(self, name: str, reason: str) -> None:
        """Include a file before the first line that declares a node or partition, here or in an included file.

        There no DEFAULT line comes before it, so that meshd's lines inherit nothing. And a user's `NodeName=localhost`
        must not be the first node (measured: "Duplicated NodeHostName").
        """
        ours = self.have.conf_dir / name
        there = [p for p in self.tree.lines if p.line.include and self._path_of(p) == ours]
        if there and not self._comes_late(ours):
            return
        for placed in there:
            if placed.file != self.path:
                return  # an included file of the user's has it: `warnings` shows what it inherits
        for placed in reversed(there):
            self.conf = self.conf.without(self._index(placed))
        self.conf = self.conf.with_line_at(self.first_declaring(), f"Include {name}")
        moved = " (moved before the first node)" if there else ""
        self.reasons.append(f"Include {name}: {reason}{moved}")

    def ship_includes(self) -> None:
        """Drop the path of included files in Slurm's own directory: Slurm ships only files without a path."""
        for placed in self.tree.lines:
            named = PurePosixPath(placed.line.include)
            if not placed.line.include or not named.is_absolute() or placed.file != self.path:
                continue
            if named.parent == self.have.conf_dir:
                raw = _INCLUDE_LINE.sub(lambda m, name=named.name: m[1] + name, placed.line.raw, count=1)  # type: ignore[misc]
                self.conf = self.conf.with_raw(self._index(placed), raw)
                self.reasons.append(
                    f"Include {named.name}: machines get only files that are included without a path; "
                    f"slurmd would wait 60 s for {named} and then end"
                )

    def _path_of(self, placed: Placed) -> PurePosixPath:
        return self.have.conf_dir / placed.line.include

    def _index(self, placed: Placed) -> int:
        """The index of a line in slurm.conf."""
        return [p.number for p in self.tree.lines if p.file == self.path].index(placed.number)

    def _comes_late(self, ours: PurePosixPath) -> bool:
        """Whether a line before our Include changes what our lines mean."""
        for placed in self.tree.lines:
            if placed.line.include and self._path_of(placed) == ours:
                return False
            if declares(placed) and (
                placed.line.pairs[0].value.upper() == "DEFAULT" or placed.line.pairs[0].value == "localhost"
            ):
                return True
        return False

    def first_declaring(self) -> int:
        """The first line of slurm.conf that declares nodes or partitions, or includes what does."""
        for at, placed in enumerate(self.tree.lines):
            if declares(placed):
                while self.tree.lines[at].file != self.path:
                    at -= 1
                return self._index(self.tree.lines[at])
        return len(self.conf.lines)


def declares(placed: Placed) -> bool:
    """The line declares nodes or partitions, or sets their defaults."""
    return placed.line.is_record and placed.line.pairs[0].key.lower() in ("nodename", "partitionname")


def read_number(text: str) -> int | None:
    """A number as Slurm's parser reads it (strtol with base 0); None when it is none."""
    if text.lower() in _FOREVER:
        return 2**32 - 2
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    return int(text) if re.fullmatch(r"\d+", text) else None


def amend(editor: Editor) -> None:
    """Put every setting that meshd needs in force."""
    tree = editor.tree
    editor.add_item(
        "SlurmctldParameters", "enable_configless", "machines fetch their configuration from the head (configless)"
    )
    editor.set("ReturnToService", "2", "a slot becomes usable when its machine registers")
    editor.at_least(
        "TreeWidth", TREE_WIDTH, "messages go straight from the head: paths between nodes may be slow", default=16
    )
    editor.at_least(
        "SlurmdTimeout", SLURMD_TIMEOUT_S, "a wide-area link may be away for minutes", default=300, zero_is_never=True
    )
    editor.at_least("MessageTimeout", MESSAGE_TIMEOUT_S, "wide-area round trips and relays are slow", default=10)
    message = read_number(editor.tree.get("MessageTimeout") or "")
    unkillable = max(UNKILLABLE_TIMEOUT_S, UNKILLABLE_PER_MESSAGE * message if message is not None else 0)
    editor.at_least(
        "UnkillableStepTimeout",
        unkillable,
        "GPU jobs take long to end; with a shorter time the node drains",
        default=60,
    )
    _amend_select(editor)
    editor.add_item("GresTypes", "gpu", "GPUs are a generic resource")
    if tree.get("SrunPortRange") is None:
        editor.set("SrunPortRange", SRUN_PORTS, "srun listens on known ports, which the tailnet's policy can allow")
    _amend_keep_alive(editor)


def _amend_keep_alive(editor: Editor) -> None:
    """Let srun and steps notice a connection whose other side is gone, unless somebody has set how.

    A tailscaled in user space that was restarted does not know earlier connections, and resets one when a probe comes.
    A machine that loses its power sends nothing. Without probes srun waits for such a step for ever.
    """
    items = editor.tree.list_of("CommunicationParameters")
    if editor.tree.get("KeepAliveTime") is None and not any(item.lower().startswith("keepalive") for item in items):
        editor.set(
            "CommunicationParameters",
            ",".join([*items, *KEEP_ALIVE]),
            "srun notices within 6 min that a connection to a node is dead",
            gets=",".join(KEEP_ALIVE),
        )


def _amend_select(editor: Editor) -> None:
    """SelectType and its parameters together: slurmctld ends when they do not fit each other."""
    tree, version = editor.tree, editor.have.version
    was = (tree.get("SelectType") or "").lower()
    if was != CONS_TRES:
        editor.set("SelectType", CONS_TRES, "only this plugin allocates GPUs")
        had = was or ("select/linear" if version and version < LINEAR_IS_DEFAULT_BEFORE else "")
        if had and editor.have.slurm_conf is not None and had != "select/cons_res":
            editor.warn(
                Warn.SELECT_TYPE,
                f"SelectType changes from {had} to {CONS_TRES}: slurmctld then loses the jobs that run or are "
                "pending: let them end before you restart it",
            )
    params = tree.list_of("SelectTypeParameters")
    if params and not any(item.lower() in _SHARES for item in params):
        memory = any(item.lower() == "cr_memory" for item in params)
        kept = [item for item in params if item.lower() != "cr_memory"]
        value = ",".join(["CR_Core_Memory" if memory else "CR_Core", *kept])
        editor.set(
            "SelectTypeParameters", value, f"{CONS_TRES} does not start without one of CR_CPU, CR_Core, CR_Socket"
        )
    elif not params and was != CONS_TRES:
        editor.set("SelectTypeParameters", "CR_Core_Memory", "Slurm allocates cores and memory")


def make_room(editor: Editor, slots: int, nodes: int) -> None:
    """Raise MaxNodeCount, where it is set, so that slurmctld's node table also has room for nodes of meshd's.

    Args:
        editor: edits slurm.conf.
        slots: the number of these.
        nodes: the number of the others.
    """
    text = editor.tree.get("MaxNodeCount")
    most = read_number(text) if text is not None else None
    if most is not None and most < nodes + slots:
        editor.set("MaxNodeCount", str(most + slots), f"meshd adds {slots} to the {nodes} nodes")


def must_be_in_force(editor: Editor, names: Iterable[str]) -> None:
    """Read the result as Slurm does, and check that every wanted value is in force.

    Raises:
        InitRefused: one is not.
    """
    new = read_tree(editor.path, {**editor.have.texts(), editor.path: editor.conf.render()}.get, editor.have.version)
    for key, value in editor.wanted.items():
        if new.get(key) != value:
            raise _not_in_force(f"{key}={value}", new.get(key) or "nothing")
    for name in names:
        if not any(
            p.line.include and editor.have.conf_dir / p.line.include == editor.have.conf_dir / name for p in new.lines
        ):
            raise _not_in_force(f"Include {name}", "nothing")


def _not_in_force(wanted: str, found: str) -> InitRefused:
    return InitRefused(
        Refusal.NOT_IN_FORCE,
        f"{wanted} would not be in force after the change ({found} would): meshd writes nothing",
        f"set {wanted} by hand at the end of slurm.conf, then `meshctl init` again",
    )


def with_own_file(have: InitInput, name: str, text: str) -> InitInput:
    """The input with meshd's own file added where it is missing, so that an Include of it resolves."""
    return have if have.conf_dir / name in have.texts() else replace(have, included={**have.included, name: text})
