"""The whole exception tree. It imports nothing but what blanks secrets, so anything may import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.codes import FaultCode, JoinCode
from meshd.plaintext import TEXT_MAX_CHARS, plain, plain_text
from meshd.redaction import redact

MESSAGE_MAX_CHARS = 8000


class MeshdError(Exception):
    """Root of everything meshd raises on purpose. The text names what happened, where, and what to do.

    Programs and clouds have their say in it: no secret that meshd knows and no control character stays in it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain_text(redact(one), MESSAGE_MAX_CHARS) if isinstance(one, str) else one for one in args))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the settings.

    Attributes:
        text: what is wrong, with the key and the value that are there, but never with a secret.
        cure: what to do; "" when the text says it.
        key: the key's path, e.g. ("pools", "h100", "max_nodes"); () when it is about no single key.
        line: of the settings file, counted from 1; 0 when not known.
        code: which fault it is: stable, the text is not.
    """

    text: str
    cure: str = ""
    key: tuple[str, ...] = ()
    line: int = 0
    code: FaultCode = FaultCode.UNUSABLE

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.text}" + (f" ({self.cure})" if self.cure else "")


class ConfigError(MeshdError):
    """Settings that cannot be used.

    Attributes:
        source: the file, or the table of it.
        faults: all that is wrong.
        problems: the same, each as one line.
    """

    def __init__(self, source: str, problems: Sequence[str | Fault]) -> None:
        self.source = source
        self.faults = [Fault(one) if isinstance(one, str) else one for one in problems]
        self.problems = [str(fault) for fault in self.faults]
        super().__init__("; ".join(f"{source}: {problem}" for problem in self.problems))


class CommandError(MeshdError):
    """A program that meshd ran ended badly. Never carries secrets: stdin is not kept."""

    def __init__(self, argv: list[str], returncode: int, stderr: str) -> None:
        self.argv = argv
        self.returncode = returncode
        self.stderr = stderr
        super().__init__(f"{argv[0]} exited with {returncode}: {stderr.strip()[-400:] or 'no message'}")


class CommandTimeout(MeshdError):
    """A program ran past its deadline and was killed: what it had begun may or may not have happened."""

    def __init__(self, argv: list[str], timeout_s: float) -> None:
        self.argv = argv
        self.timeout_s = timeout_s
        super().__init__(f"{argv[0]} did not finish within {timeout_s:g} s")


class CommandNotFound(MeshdError):
    """The program is not installed or not on PATH."""

    def __init__(self, program: str) -> None:
        self.program = program
        super().__init__(f"{program} is not installed or not on PATH")


class SlurmError(MeshdError):
    """Slurm refused, or answered in a way that cannot be read."""


class SlurmRefused(SlurmError):
    """Slurm refused a new configuration; the last good one is back in place."""


class TailnetError(MeshdError):
    """tailscaled or the tailnet's control server refused or cannot be reached."""


class NotNow(MeshdError):
    """It cannot be answered just now; asking again in a moment is enough."""


class TailnetRefused(TailnetError):
    """The control server, or its API, said no: the same again cannot help."""


class MungeError(MeshdError):
    """munged cannot encode or decode, or both sides do not share a key."""


class JoinRefused(MeshdError):
    """A machine asked to join and may not. `cure` says what would let it.

    `fatal` is False when trying again later may help (the head is not ready), True when this machine never can.
    `code` is stable: programs and tests compare it.
    """

    def __init__(self, reason: str, cure: str, *, fatal: bool = True, code: JoinCode = JoinCode.REFUSED) -> None:
        self.reason = reason
        self.cure = cure
        self.fatal = fatal
        self.code = code
        super().__init__(f"{reason} ({cure})")


class StoreError(MeshdError):
    """The journal cannot be read or written."""


class IllegalMove(MeshdError):
    """A machine was asked to go from one phase to another that does not follow it."""


class ProviderError(MeshdError):
    """A cloud's refusal.

    Attributes:
        vendor_text: the vendor's own words, for `meshctl events`.
        retry_after_s: when to try again, where that is known.
    """

    kind = "error"

    def __init__(
        self,
        text: str,
        *,
        provider: str = "",
        operation: str = "",
        vendor_text: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self.text = text = plain(redact(text), TEXT_MAX_CHARS)
        self.provider = provider
        self.operation = operation
        self.vendor_text = plain(redact(vendor_text), TEXT_MAX_CHARS) if vendor_text else text
        self.retry_after_s = retry_after_s
        super().__init__(f"{provider} {operation}: {text}".strip(" :") if provider or operation else text)


class NotFound(ProviderError):
    """The cloud does not know this machine (any more)."""

    kind = "not_found"


class NoCapacity(ProviderError):
    """Nothing of this offer is free right now: try another zone, type, region or provider."""

    kind = "no_capacity"


class QuotaExceeded(ProviderError):
    """The account may not have more of this; waiting does not help."""

    kind = "quota_exceeded"


class RateLimited(ProviderError):
    """Too many calls. Nothing happened; try again after `retry_after_s` seconds."""

    kind = "rate_limited"


class AuthFailed(ProviderError):
    """The credential is wrong, expired, lacks a permission, or the account is blocked."""

    kind = "auth_failed"


class ProviderOff(AuthFailed):
    """meshd cannot use this provider at all: its credential, settings or program are faulty. `cure` says what to do.

    The daemon raises it in the place of an adapter that could not be made; no adapter does.
    """

    def __init__(self, text: str, cure: str, *, provider: str = "") -> None:
        self.cure = cure
        super().__init__(text, provider=provider)


class InvalidRequest(ProviderError):
    """The cloud calls the request wrong; sending it again cannot help."""

    kind = "invalid_request"


class Transient(ProviderError):
    """A fault on the cloud's side of a call that changes nothing, or that surely had no effect."""

    kind = "transient"


class Uncertain(ProviderError):
    """The call may have had its effect: time-out, cut connection, 5xx or an unreadable answer after sending."""

    kind = "uncertain"
