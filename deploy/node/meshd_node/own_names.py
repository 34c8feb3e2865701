"""PURE: takes from /etc/hosts what would lead a node's name to itself alone.

Debian, Ubuntu and cloud-init (`manage_etc_hosts`) write `127.0.1.1 HOSTNAME`. The resolver returns every address of a
name, and sorts those of the loopback first, wherever the line stands (RFC 6724; glibc: measured). Programs that offer
the address of their own name to others, such as gloo, would then offer 127.0.1.1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from .hosts import BEGIN, END


def without_own(text: str, own: str, names: Collection[str]) -> str:
    """The file's text without lines that say something else of these names; meshd's block stays as it is.

    Args:
        text: the whole file.
        own: this node's name: no other line may have it.
        names: all nodes and the head: no line with an address of the loopback may have one of them. On other lines they
            stay, because somebody wants them to mean that.
    """
    everywhere = {own.lower()} - {"", "localhost"}
    local = {name.lower() for name in names} - {"localhost"} | everywhere
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        inside = mark == BEGIN or (inside and mark != END)
        kept.append(line if inside or mark == END else _without(line, everywhere, local))
    return "".join(kept)


def _without(line: str, everywhere: Collection[str], local: Collection[str]) -> str:
    """The line without the names that it must not have; "" when none is left."""
    words = line.partition("#")[0].split()
    unwanted = local if words and _is_loopback(words[0]) else everywhere
    left = [word for word in words[1:] if word.lower() not in unwanted]
    if len(left) == len(words[1:]):
        return line
    return f"{words[0]} {' '.join(left)}\n" if left else ""


def _is_loopback(word: str) -> bool:
    try:
        return ipaddress.ip_address(word.partition("%")[0]).is_loopback
    except ValueError:
        return False
