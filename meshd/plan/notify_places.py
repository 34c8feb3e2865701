"""Where a notice may be sent. PURE.

A webhook of https may be anywhere but at addresses that no receiver has: link-local ones, among them the metadata
services of clouds. http is for loopback and the tailnet alone: there nobody listens.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TAILNET: Final = (ipaddress.ip_network("100.64.0.0/10"), ipaddress.ip_network("fd7a:115c:a1e0::/48"))
METADATA: Final = frozenset(
    ipaddress.ip_address(one) for one in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192")
)
"""Link-local in most clouds; some have others: EC2 (IPv6), Alibaba, Oracle."""
URL_MAX: Final = 2000
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")


def address_fault(text: str) -> str:
    """Why nothing is sent to this IP address; "" when it may be."""
    address = _address(text)
    if address is None:
        return f"{text} is no IP address"
    if address.is_link_local or address in METADATA:
        return f"{address} is link-local or a cloud's metadata service"
    if address.is_multicast or address.is_unspecified or address == ipaddress.ip_address("255.255.255.255"):
        return f"{address} is no address of a machine"
    return ""


def is_near(host: str) -> bool:
    """Whether a host is this machine, or one of the tailnet, by its address."""
    address = _address(host)
    if address is None:
        return host.rstrip(".").lower() == "localhost"
    return address.is_loopback or any(address in net for net in TAILNET if net.version == address.version)


def url_fault(url: str) -> str:
    """Why a webhook's URL is refused; "" when it is fine. Shows nothing of it, for it may be a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it is no URL"
    if len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "it is no URL"
    if parts.scheme not in {"https", "http"} or not parts.hostname or port == 0:
        return "it does not begin with https:// and a host"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "it has a user, a password or a fragment"
    return _host_fault(parts)


def _host_fault(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if _address(host) is not None:
        if fault := address_fault(host):
            return fault
    elif not _HOST.fullmatch(host):
        return "its host is no name"
    if parts.scheme == "http" and not is_near(host):
        return "http is only for localhost and the tailnet's addresses (100.64.0.0/10), since others may read it"
    return ""


def mail_fault(address: str) -> str:
    """Why this is no mail address; "" when it is one. Only plain ones: no quotes, no comments."""
    if len(address) > 254 or not re.fullmatch(
        r"[A-Za-z0-9._%+=-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", address
    ):
        return "it is no mail address"
    return ""


def host_fault(host: str) -> str:
    """Why this is no mail server; "" when it may be one."""
    if _address(host) is not None:
        return address_fault(host)
    return "" if len(host) <= 253 and _HOST.fullmatch(host) else "it is no host name"


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return mapped or found
