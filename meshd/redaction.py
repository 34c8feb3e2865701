"""Known secrets, and text without them.

Every secret is registered where it is loaded or made. A text that came from outside, or that goes into a log, the
journal or an answer, passes `redact`. Clouds and proxies echo what they were sent, also encoded: so each secret is
looked for in its base64 and URL forms too. It imports nothing of meshd, so anything may import it.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

HIDDEN: Final = "**********"
SECRET_MIN_LENGTH: Final = 6
LINE_MIN_LENGTH: Final = 16
PASSING_MAX: Final = 2000
"""So many secrets that serve one machine each are known at a time: those that were used last."""

_PREFIX: Final = SECRET_MIN_LENGTH
_LONG_RUN: Final = re.compile(r"""[^\s"'`<>,;(){}\[\]]{24,}""")
"""What passing secrets, and their forms, look like."""
_SECRET_NAMES: Final = re.compile(r"private_key$|secret|password|token$|api_key$|^key$")
_SHAPES: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/-]{16,}=*|\btskey-[a-z]+-[A-Za-z0-9-]{8,}")
"""Secrets that nobody registered, by their looks: an SDK's own access token in an echoed header; an auth key."""


class Redactor:
    """Secrets and all their forms."""

    def __init__(self) -> None:
        self._lasting: set[str] = set()
        self._longest_first: tuple[str, ...] = ()
        self._passing: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._by_prefix: dict[str, set[str]] = {}

    def register(self, secret: str | bytes, *, passing: bool = False) -> None:
        """Keep a secret out of every text from now on.

        Args:
            secret: values under 6 characters are not taken: they would blank innocent words.
            passing: it serves one machine or one call: it is forgotten when many others came after it.
        """
        word = secret if isinstance(secret, str) else secret.hex()
        if word in self._lasting:
            return
        if not passing or not _LONG_RUN.fullmatch(word):
            self._lasting.add(word)
            forms = {*self._longest_first, *_forms(secret)}
            self._longest_first = tuple(sorted(forms, key=len, reverse=True))
            return
        if word in self._passing:
            self._passing.move_to_end(word)
            return
        self._passing[word] = frozenset(_forms(secret))
        for form in self._passing[word]:
            self._by_prefix.setdefault(form[:_PREFIX], set()).add(form)
        if len(self._passing) > PASSING_MAX:
            _, forms_gone = self._passing.popitem(last=False)
            for form in forms_gone:
                self._by_prefix[form[:_PREFIX]].discard(form)
                if not self._by_prefix[form[:_PREFIX]]:
                    del self._by_prefix[form[:_PREFIX]]

    def redact(self, text: str) -> str:
        """The text without any registered value, the longest first so that none leaves a tail."""
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        if self._by_prefix:
            text = _LONG_RUN.sub(self._without_passing, text)
        if "tskey-" in text or "earer " in text or "asic " in text or "EARER " in text:
            text = _SHAPES.sub(lambda found: f"{found[1]} {HIDDEN}" if found[1] else HIDDEN, text)
        return text

    def _without_passing(self, run: re.Match[str]) -> str:
        """Of so many secrets only those are compared that begin as the text does at some place."""
        text, parts, last, at = run[0], [], 0, 0
        while at <= len(text) - _PREFIX:
            found = self._by_prefix.get(text[at : at + _PREFIX], ())
            form = max((one for one in found if text.startswith(one, at)), key=len, default="")
            if form:
                parts += [text[last:at], HIDDEN]
                last = at + len(form)
            at += len(form) or 1
        return "".join([*parts, text[last:]])


def _forms(secret: str | bytes) -> Iterable[str]:
    if isinstance(secret, bytes):
        yield from _of_bytes(secret)
        yield secret.hex()
        return
    for part in {secret, secret.strip(), *_lines(secret), *_fields(secret)}:
        if len(part) < SECRET_MIN_LENGTH:
            continue
        plain = {part, json.dumps(part)[1:-1], urllib.parse.quote(part, safe=""), urllib.parse.quote_plus(part)}
        yield from plain
        yield from {urllib.parse.quote(part), part.encode("unicode_escape").decode()}
        yield from _of_bytes(part.encode("utf-8", "surrogatepass"))


def _of_bytes(raw: bytes) -> Iterable[str]:
    """Its base64 forms, by itself and as a part of something longer, wherever that begins."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        if len(raw) >= SECRET_MIN_LENGTH:
            yield from (whole, whole.rstrip("="), urllib.parse.quote(whole, safe=""))
        for offset in range(3):
            text = encode(b"\0" * offset + raw).decode().rstrip("=")
            first = (0, 2, 3)[offset]
            end = len(text) - (1 if (offset + len(raw)) % 3 else 0)
            if end - first >= 8:
                yield text[first:end]


def _lines(secret: str) -> Iterable[str]:
    """Of a key with several lines each by itself: it may be shown with other line ends."""
    lines = secret.replace("\\n", "\n").splitlines()
    if len(lines) > 1:
        for line in lines:
            if len(line.strip()) >= LINE_MIN_LENGTH and "-----" not in line and '"' not in line:
                yield line.strip()


def _fields(secret: str) -> Iterable[str]:
    """What is secret in a credential file of JSON, e.g. a service account's."""
    if not secret.lstrip().startswith("{"):
        return
    try:
        found = json.loads(secret)
    except (ValueError, RecursionError):
        return
    for name, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, str) and _SECRET_NAMES.search(str(name)):
            yield value
            yield from _lines(value)


def redact_json(value: Any) -> Any:
    """A JSON-like value with every string in it, names too, redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_json(name): redact_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(one) for one in value]
    return value


_known = Redactor()


def register_secret(secret: str | bytes, *, passing: bool = False) -> None:
    """See `Redactor.register`; for the whole process."""
    _known.register(secret, passing=passing)


def redact(text: str) -> str:
    """See `Redactor.redact`."""
    return _known.redact(text)
