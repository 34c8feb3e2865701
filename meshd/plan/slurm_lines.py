"""PURE: which lines meshd's nodes.conf and gres.conf may have. Everything else is refused.

Slurm's commands read these files as root, and a line of slurm.conf may name a library to load (`PluginDir=`). So root's
unit accepts only what this module allows: records of nodes and partitions with a closed set of keys, each with a closed
form of its value. meshd writes its lines by the same rules. Only the standard library is used, since root's unit
imports this module.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from meshd.plan.limits import COUNT_MAX, GPUS_MAX, MEMORY_MAX_MIB, NODES_MAX, POOL, partition_fault

TAILNET = IPv4Network("100.64.0.0/10")
PLACEHOLDERS = IPv4Network("239.192.0.0/14")
"""The addresses of free slots: multicast inside an organisation (RFC 2365), 262,144 of them.

A connection to one fails at once. With addresses that drop packets, slurmctld's pings of free slots hang, and each
reconfigure waits 2 to 3 s for them ("agent_fini: left 12 agent threads active").
"""

LINE_MAX = 65_536
LINES_MAX = 2 * PLACEHOLDERS.num_addresses
MAX_NODES_DEFAULT = 8
"""As in the settings of a pool."""

NODE_PLAIN = {"TmpDisk": "0", "Weight": "1", "CoreSpecCount": "0", "MemSpecLimit": "0"}
PARTITION_PLAIN = {
    "MinNodes": "0",
    "MaxNodes": "UNLIMITED",
    "AllowGroups": "ALL",
    "AllowAccounts": "ALL",
    "AllowQos": "ALL",
    "OverSubscribe": "NO",
    "Hidden": "NO",
    "RootOnly": "NO",
    "PriorityTier": "1",
}
"""Slurm's own defaults, on every line. Without them an earlier DEFAULT line of the user would set them."""

_COUNT = r"[1-9][0-9]{0,4}"
_WORD = r"[A-Za-z0-9_.-]{1,64}"
_SLOTS = r"[a-z][-a-z0-9]{0,19}-(?:[1-9][0-9]{0,4}|\[[1-9][0-9]{0,4}-[1-9][0-9]{0,4}\])"
_ADDRESSES = r"[0-9]{1,3}(?:\.[0-9]{1,3}){2}\.(?:[0-9]{1,3}|\[[0-9]{1,3}-[0-9]{1,3}\])"
_NODE = {
    "NodeAddr": rf"{_ADDRESSES}(?:,{_ADDRESSES})*",
    "CPUs": _COUNT,
    "Boards": _COUNT,
    "SocketsPerBoard": _COUNT,
    "CoresPerSocket": _COUNT,
    "ThreadsPerCore": _COUNT,
    "RealMemory": r"[1-9][0-9]{0,9}",
    **{key: re.escape(value) for key, value in NODE_PLAIN.items()},
    "Gres": rf"gpu(?::{_WORD})?:[1-9][0-9]?",
    "Feature": rf"{_WORD}(?:,{_WORD})*",
    "State": r"(?:UNKNOWN|DOWN|CLOUD)",
    "Reason": r'"[A-Za-z0-9 _.,:;()/-]{1,200}"',
}
_PARTITION = {
    "Nodes": rf"{_SLOTS}(?:,{_SLOTS})*",
    "Default": r"(?:YES|NO)",
    "MaxTime": r"INFINITE",
    **{key: re.escape(value) for key, value in PARTITION_PLAIN.items()},
    "State": r"(?:UP|DOWN|DRAIN|INACTIVE)",
}
_FILES = r"(?:[0-9]{1,4}|\[[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*\])"


def _record(opens: str, value: str, keys: Mapping[str, str]) -> re.Pattern[str]:
    """A line that begins with `opens=value`, followed by any of the keys."""
    return re.compile(rf"{opens}=({value})((?: (?:{'|'.join(f'{key}={form}' for key, form in keys.items())}))+)")


_NODE_LINE = _record("NodeName", _SLOTS, _NODE)
_PARTITION_LINE = _record("PartitionName", _WORD, _PARTITION)
_GRES_LINE = re.compile(rf"NodeName=({_SLOTS}) Name=gpu(?: Type={_WORD})? File=/dev/nvidia{_FILES}")
_COMMENT = re.compile(r"#[ -\[\]-~]{0,300}")
_PLACEHOLDER = re.compile(r"239\.19[2-5]\.")
"""How the addresses in PLACEHOLDERS begin."""
_PAIR = re.compile(r" ([A-Z][A-Za-z]+)=(\"[^\"]*\"|[^ ]+)")
_NUMBERS = {
    **dict.fromkeys(("CPUs", "Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore"), COUNT_MAX),
    "RealMemory": MEMORY_MAX_MIB,
}


class LineRefused(Exception):
    """A text that may not become one of Slurm's files. The message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The names that may be declared.

    Attributes:
        pools: the highest slot number of each pool.
    """

    pools: Mapping[str, int] = field(default_factory=dict)
    partitions: frozenset[str] = frozenset()

    def has_slot(self, name: str) -> bool:
        """Whether the name is that of an allowed slot."""
        pool, _, index = name.rpartition("-")
        return re.fullmatch(r"[1-9][0-9]{0,4}", index) is not None and int(index) <= self.pools.get(pool, 0)

    def __or__(self, other: Allowed) -> Allowed:
        """What either allows."""
        names = {*self.pools, *other.pools}
        pools = {name: max(self.pools.get(name, 0), other.pools.get(name, 0)) for name in names}
        return Allowed(pools, self.partitions | other.partitions)


def allowed_by(settings: bytes) -> Allowed:
    """The names that meshd's settings (TOML) declare; no names when the settings cannot be read."""
    try:
        tables = tomllib.loads(settings.decode()).get("pools", {})
    except ValueError:
        return Allowed()
    pools: dict[str, int] = {}
    partitions: set[str] = set()
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if POOL.fullmatch(name) and isinstance(table, dict):
            most, partition = table.get("max_nodes", MAX_NODES_DEFAULT), table.get("partition")
            pools[name] = min(most, NODES_MAX) if isinstance(most, int) else MAX_NODES_DEFAULT
            partitions.add(partition if isinstance(partition, str) and partition else name)
    return Allowed(pools, frozenset(partitions))


def known(settings: bytes, nodes_conf: bytes) -> Allowed:
    """The names in the settings, and those in the present nodes.conf, which may stay."""
    try:
        there = check(nodes_conf.decode("ascii"), "")
    except (ValueError, LineRefused):
        there = Allowed()
    return allowed_by(settings) | there


def check(nodes_conf: str, gres_conf: str, allowed: Allowed | None = None) -> Allowed:
    """Check every line of both files.

    Args:
        nodes_conf: the whole text.
        gres_conf: the whole text.
        allowed: the names that may be declared; None for any.

    Returns:
        The names that the files declare.

    Raises:
        LineRefused: for the first line that is not allowed.
    """
    declared: dict[str, set[int]] = {}
    partitions: set[str] = set()
    used: list[tuple[int, str]] = []
    for number, line in _lines("nodes.conf", nodes_conf):
        fault = _node_or_partition(line, declared, partitions, used, number)
        if fault:
            raise LineRefused(f"nodes.conf, line {number}: {fault}")
    for number, slots in used:
        pool, first, last = slots_of(slots)
        if not declared.get(pool, set()).issuperset(range(first, last + 1)):
            raise LineRefused(f"nodes.conf, line {number}: {slots} is no node of this file")
    found = Allowed({pool: max(indexes) for pool, indexes in declared.items()}, frozenset(partitions))
    _check_names(found, allowed)
    with_gpus: dict[str, set[int]] = {}
    for number, line in _lines("gres.conf", gres_conf):
        fault = "" if _COMMENT.fullmatch(line) else gres_line_fault(line)
        if fault:
            raise LineRefused(f"gres.conf, line {number}: {fault}")
        if match := _GRES_LINE.fullmatch(line):
            pool, first, last = slots_of(match[1])
            if not declared.get(pool, set()).issuperset(range(first, last + 1)):
                raise LineRefused(f"gres.conf, line {number}: {match[1]} is no node of nodes.conf")
            if not with_gpus.setdefault(pool, set()).isdisjoint(range(first, last + 1)):
                raise LineRefused(f"gres.conf, line {number}: a node of {match[1]} has its GPUs twice")
            with_gpus[pool].update(range(first, last + 1))
    return found


def node_line_fault(line: str) -> str:
    """Why this is not allowed as a node's line; "" when it is."""
    match = _NODE_LINE.fullmatch(line)
    if not match:
        return f"no node's line in meshd's form: {line[:100]!r}"
    pool, first, last = slots_of(match[1])
    if not POOL.fullmatch(pool) or not 1 <= first <= last <= NODES_MAX:
        return f"no slot's name: {match[1]!r}"
    keys = _pairs(match[2])
    if keys is None:
        return "a key stands there twice"
    for key, most in _NUMBERS.items():
        if key in keys and int(keys[key]) > most:
            return f"{key}={keys[key]} is more than {most}"
    if int(keys.get("Gres", "0").rpartition(":")[2]) > GPUS_MAX:
        return f"{keys['Gres']} is more than {GPUS_MAX}"
    addresses = keys.get("NodeAddr", "")
    return _address_fault(addresses, last - first + 1) or _state_fault(keys, free=is_free(addresses))


def is_free(addresses: str) -> bool:
    """Whether the NodeAddr of a line is that of free slots: such a line has placeholders and nothing else."""
    return _PLACEHOLDER.match(addresses) is not None


def partition_line_fault(line: str) -> str:
    """Why this is not allowed as a partition's line; "" when it is."""
    match = _PARTITION_LINE.fullmatch(line)
    if not match:
        return f"no partition's line in meshd's form: {line[:100]!r}"
    if _pairs(match[2]) is None:
        return "a key stands there twice"
    return partition_fault(match[1])


def gres_line_fault(line: str) -> str:
    """Why this is not allowed as a line of gres.conf; "" when it is."""
    return "" if _GRES_LINE.fullmatch(line) else f"no GPU's line in meshd's form: {line[:100]!r}"


def slots_of(text: str) -> tuple[str, int, int]:
    """The pool, first and last index of `h100-3` or `h100-[4-8]`."""
    pool, _, index = text.partition("[")[0].rpartition("-") if "[" in text else text.rpartition("-")
    if "[" not in text:
        return pool, int(index), int(index)
    first, _, last = text.partition("[")[2].rstrip("]").partition("-")
    return pool, int(first), int(last)


def _lines(name: str, text: str) -> list[tuple[int, str]]:
    """The numbered lines of a text without forbidden characters and of a bounded size."""
    if re.search(r"[^\n -~]", text):
        raise LineRefused(f"{name}: it has characters that are not printable ASCII")
    if "\\" in text:
        raise LineRefused(f"{name}: it has a backslash, which joins lines")
    if text and not text.endswith("\n"):
        raise LineRefused(f"{name}: the last line has no end")
    lines = text.split("\n")[:-1]
    if len(lines) > LINES_MAX or any(len(line) > LINE_MAX for line in lines):
        raise LineRefused(f"{name}: more than {LINES_MAX} lines, or a line of more than {LINE_MAX} characters")
    return list(enumerate(lines, 1))


def _node_or_partition(
    line: str, declared: dict[str, set[int]], partitions: set[str], used: list[tuple[int, str]], number: int
) -> str:
    if line.startswith("#"):
        return "" if _COMMENT.fullmatch(line) else "no comment in meshd's form"
    if line.startswith("PartitionName="):
        if fault := partition_line_fault(line):
            return fault
        match = _PARTITION_LINE.fullmatch(line)
        name = match[1] if match else ""
        if name in partitions:
            return f"partition {name} stands there twice"
        partitions.add(name)
        nodes = (_pairs(match[2]) if match else None) or {}
        used.extend((number, slots) for slots in nodes.get("Nodes", "").split(",") if slots)
        return ""
    if fault := node_line_fault(line):
        return fault
    pool, first, last = slots_of(line.partition(" ")[0].partition("=")[2])
    known = declared.setdefault(pool, set())
    new = range(first, last + 1)
    if not known.isdisjoint(new):
        return f"{pool}-{min(known.intersection(new))} is declared twice"
    known.update(new)
    return ""


def _check_names(found: Allowed, allowed: Allowed | None) -> None:
    if allowed is None:
        return
    for pool, most in found.pools.items():
        if most > allowed.pools.get(pool, 0):
            raise LineRefused(f"nodes.conf: {pool}-{most} is no slot of a pool in meshd.toml")
    if unknown := sorted(found.partitions - allowed.partitions):
        raise LineRefused(f"nodes.conf: {unknown[0]} is no partition of a pool in meshd.toml")


def _pairs(text: str) -> dict[str, str] | None:
    """The keys with their values; None when a key is there twice."""
    pairs = _PAIR.findall(text)
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def _state_fault(keys: Mapping[str, str], *, free: bool) -> str:
    """Why a line may not have this State; "" when it may.

    There are three forms: a free slot that meshd opens (DOWN), one that Slurm's power saving opens (CLOUD, free or
    with a machine), and a machine on a slot that meshd opened (UNKNOWN).
    """
    state = keys.get("State", "")
    if state not in ({"DOWN", "CLOUD"} if free else {"UNKNOWN", "CLOUD"}):
        return f"State={state} is no state of a {'free slot' if free else 'machine'}"
    return "Reason= belongs to free slots in State=DOWN" if "Reason" in keys and state != "DOWN" else ""


def _address_fault(text: str, nodes: int) -> str:
    """Why these are not addresses for that number of nodes (one tailnet address, or placeholders); "" when they are."""
    count = 0
    for part in text.split(",") if text else ():
        head, _, last = part.rpartition(".")
        low, _, high = last.strip("[]").partition("-")
        try:
            first, end = IPv4Address(f"{head}.{low}"), IPv4Address(f"{head}.{high or low}")
        except ValueError:
            return f"{part} is no IPv4 address"
        size = int(end) - int(first) + 1
        free = first in PLACEHOLDERS and end in PLACEHOLDERS
        if size < 1 or not (free or (size == nodes == 1 and first in TAILNET)):
            return f"{part} is neither an address of the tailnet ({TAILNET}) nor a free slot's ({PLACEHOLDERS})"
        count += size
    return "" if count == nodes else f"{count} addresses for {nodes} nodes"
