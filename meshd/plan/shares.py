"""PURE: shares: which settings are possible, what a node mounts, and what the head exports.

Only the standard library is used, since root's unit imports this module.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import PurePath
from typing import Any

TAILNET = IPv4Network("100.64.0.0/10")
SHARES_MAX = 16
PATH_CHARS_MAX = 255

OPTIONS = ("vers=4.2", "hard", "noatime", "nosuid", "nodev")
"""Of every mount. `hard`: a program waits for a server that is away. With `soft` its writes would be lost."""

_SWITCHES = frozenset({"ro", "rw", "noexec", "relatime", "nocto", "cto", "fsc", "ac", "rdirplus", "nordirplus"})
_NUMBERS = {
    "nconnect": (1, 16), "rsize": (4096, 1 << 20), "wsize": (4096, 1 << 20), "timeo": (10, 6000), "port": (1, 65535),
    "actimeo": (0, 3600), "acregmin": (0, 3600), "acregmax": (0, 3600), "acdirmin": (0, 3600), "acdirmax": (0, 3600),
    "max_connect": (1, 16),
}  # fmt: skip
_WORDS = {"lookupcache": ("all", "none", "pos", "positive"), "vers": ("4.0", "4.1", "4.2")}

_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.+@-]*)+")
_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?")

_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/snap",
    "/sys", "/tmp", "/usr", "/var", "/opt/meshd", "/opt/meshd-node",  # noqa: S108  # not used
)  # fmt: skip
"""Neither these nor anything below them: the machine needs its own."""
_ALSO_SYSTEM = ("/opt",)
"""Not these themselves: meshd's own programs are below."""
_NOT_EXPORTED = (
    *(path for path in _SYSTEM if path != "/var"),
    "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp",  # noqa: S108  # not used
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """A directory that nodes mount.

    Attributes:
        name: of its table in the settings.
        path: where nodes have it.
        server: name or address; "" for the head.
        source: its path at the server.
        options: of mount, beside `OPTIONS`.
    """

    name: str
    path: str
    server: str = ""
    source: str = ""
    options: tuple[str, ...] = ()

    @property
    def at_server(self) -> str:
        """Its path at the server."""
        return self.source or self.path

    @property
    def read_only(self) -> bool:
        """Whether nodes only read it."""
        return "ro" in self.options


@dataclass(frozen=True, slots=True)
class ShareFault:
    """Why shares are not possible.

    Attributes:
        name: of the share.
        key: of its table; "" for the table itself.
    """

    name: str
    key: str
    text: str
    cure: str


def share_faults(shares: Sequence[Share]) -> Iterator[ShareFault]:
    """Everything that is wrong with these shares; nothing when they are possible."""
    if len(shares) > SHARES_MAX:
        yield ShareFault("", "", f"{len(shares)} shares", f"at most {SHARES_MAX}")
    for share in shares:
        if not _NAME.fullmatch(share.name):
            cure = "use lower-case letters, digits and dashes, at most 20, a letter first, no dash last"
            yield ShareFault(share.name, "", f"share name {share.name!r} is not possible", cure)
        yield from _faults_alone(share)
    for index, share in enumerate(shares):
        for other in shares[:index]:
            if share.path == other.path:
                yield ShareFault(share.name, "path", f"share {other.name} has it too", "give each share its own path")
            elif _below(share.path, (other.path,)) or _below(other.path, (share.path,)):
                text = f"it and share {other.name} ({other.path}) are one inside the other"
                yield ShareFault(share.name, "path", text, "share only the outer one, or put them side by side")


def _faults_alone(share: Share) -> Iterator[ShareFault]:
    if text := _path_fault(share.path):
        yield ShareFault(share.name, "path", text, 'e.g. path = "/home"')
    elif _below(share.path, _SYSTEM) or share.path in _ALSO_SYSTEM:
        yield ShareFault(share.name, "path", "a node needs its own there", 'e.g. path = "/home" or "/srv/data"')
    if share.server and not _SERVER.fullmatch(share.server):
        cure = "write a host name or an IPv4 address, without the path"
        yield ShareFault(share.name, "server", "it is no name of a host, and no address", cure)
    if share.source and (text := _path_fault(share.source)) and not (share.server and share.source == "/"):
        yield ShareFault(share.name, "source", text, f'e.g. source = "{share.path}"')
    elif not share.server and systems(share.at_server):
        yield ShareFault(share.name, "source", "nodes could change the head by it", "share a directory of data")
    for option in share.options:
        if text := _option_fault(option):
            yield ShareFault(share.name, "options", f"{option[:40]!r}: {text}", "leave it out")


def systems(path: PurePath | str) -> bool:
    """Whether a directory is the system's, so that no head exports it."""
    return _below(str(path), _NOT_EXPORTED) or str(path) in ("/", "/var", "/opt")


def _path_fault(path: str) -> str:
    if not path.startswith("/"):
        return "it is no absolute path"
    if path == "/":
        return "it is the whole file system"
    if len(path) > PATH_CHARS_MAX:
        return f"it has more than {PATH_CHARS_MAX} characters"
    if not _PATH.fullmatch(path):
        return (
            "only letters, digits and _ . + @ - are possible between single slashes, and no part begins with a dot, "
            "+, @ or -"
        )
    return ""


def _below(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of these, or inside one."""
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _option_fault(option: str) -> str:
    """Why a mount may not have an option. Only options are known that cannot lose data or weaken `OPTIONS`."""
    name, has_value, value = option.partition("=")
    if name in {"soft", "softerr", "softreval"}:
        return "a program's writes would be lost while the server is away"
    if name == "sec":
        return "meshd sets up sec=sys alone"
    if name in {"suid", "dev", "atime"}:
        return f"meshd mounts with no{name}"
    if not has_value and name in _SWITCHES:
        return ""
    if name in _NUMBERS and re.fullmatch(r"[0-9]{1,8}", value):
        least, most = _NUMBERS[name]
        return "" if least <= int(value) <= most else f"it is between {least} and {most}"
    if name in _WORDS:
        return "" if value in _WORDS[name] else f"it is one of {', '.join(_WORDS[name])}"
    return "meshd does not know this option"


def mount_options(share: Share) -> tuple[str, ...]:
    """All options of the mount. One that the settings give replaces the one of the same name."""
    given = {option.partition("=")[0] for option in share.options}
    return (*(option for option in OPTIONS if option.partition("=")[0] not in given), *share.options)


def section_value(shares: Sequence[Share]) -> dict[str, Any]:
    """The value of the section `shares` of the node settings."""
    return {
        "shares": [
            {"path": one.path, "server": one.server, "source": one.at_server, "options": list(mount_options(one))}
            for one in sorted(shares, key=lambda one: one.path)
        ]
    }


# -- the head's exports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Export:
    """One line of exports(5)."""

    path: str
    address: str
    options: str


EXPORT_OPTIONS = "sync,no_subtree_check,root_squash,sec=sys"
EXPORTS_MAX = 65_536
_LINE = re.compile(r'"?(?P<path>/[^"\s]*)"?\s+(?P<address>[0-9.]+)\((?P<options>[a-z0-9_,=]*)\)')
_HEADER = (
    "# Written by meshd for the nodes that it rents: changes are lost. The paths come from [share] in meshd.toml.\n"
)


def exports(shares: Iterable[Share], addresses: Collection[str]) -> tuple[Export, ...]:
    """What the head exports: each of its shares to each node, by address.

    Args:
        shares: without faults; those of other servers are left out.
        addresses: of the nodes, in the tailnet.
    """
    found = [
        Export(share.at_server, address, f"{'ro' if share.read_only else 'rw'},{EXPORT_OPTIONS}")
        for share in shares if not share.server for address in addresses
    ]  # fmt: skip
    return tuple(sorted(set(found), key=lambda one: (one.path, IPv4Address(one.address), one.options)))


def exports_text(wanted: Sequence[Export]) -> str:
    """The file, one line for each export. exports(5): quotes keep a path whole."""
    return _HEADER + "".join(f'"{one.path}" {one.address}({one.options})\n' for one in wanted)


def read_exports(text: str) -> tuple[Export, ...]:
    """The exports in a file that `exports_text` wrote; other lines are passed over."""
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(Export(m["path"], m["address"], m["options"]) for m in matches if m)


def in_force(etab: str) -> frozenset[tuple[str, str]]:
    """(path, client) of each export in force, by the text of /var/lib/nfs/etab."""
    found = set()
    for line in etab.splitlines():
        path, _, client = line.partition("\t")
        path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)
        found.add((path, client.partition("(")[0]))
    return frozenset(found)


def node_address_fault(address: object) -> str:
    """Why nothing is exported to an address; "" when it may be a node's."""
    try:
        inside = IPv4Address(address) in TAILNET if isinstance(address, str) else False
    except AddressValueError:
        inside = False
    return "" if inside else f"{str(address)[:70]!r} is no address in {TAILNET}"


# -- the settings, as root reads them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadShares:
    """The shares of a settings file, or why they cannot be used."""

    shares: tuple[Share, ...] = ()
    fault: str = ""


def shares_in(settings: bytes) -> ReadShares:
    """The shares in the text of meshd.toml, checked again."""
    try:
        tables = tomllib.loads(settings.decode()).get("share", {})
        shares = tuple(_share(name, table) for name, table in tables.items())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        return ReadShares(fault=f"its [share] tables cannot be read ({type(error).__name__})")
    fault = next(share_faults(shares), None)
    if fault is not None:
        return ReadShares(fault=f"share.{fault.name}: {fault.text}")
    return ReadShares(shares)


def _share(name: str, table: Mapping[str, Any]) -> Share:
    texts = {key: table.get(key, "") for key in ("path", "server", "source")}
    options = table.get("options", [])
    if not all(isinstance(text, str) for text in (*texts.values(), *options)):
        raise TypeError("not text")
    return Share(name=name, **texts, options=tuple(options))
