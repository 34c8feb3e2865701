"""The exception tree. It imports only codes and redaction, so that every module can import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.codes import FaultCode, JoinCode
from meshd.plaintext import TEXT_MAX_CHARS, plain, plain_text
from meshd.redaction import redact

MESSAGE_MAX_CHARS = 8000


class MeshdError(Exception):
    """Root of all exceptions that meshd raises. The text says what happened, where, and what to do.

    Texts may quote programs and clouds: the constructor removes known secrets and control characters.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain_text(redact(one), MESSAGE_MAX_CHARS) if isinstance(one, str) else one for one in args))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the settings.

    Attributes:
        text: what is wrong, with key and value, but never with a secret.
        cure: what to do; "" when the text says it.
        key: the key's path, e.g. ("pools", "h100", "max_nodes"); () when it concerns no single key.
        line: in the settings file, from 1; 0 when unknown.
        code: stable, unlike the text.
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
        source: the file, or a table in it.
        faults: everything that is wrong.
        problems: the faults as text, one line each.
    """

    def __init__(self, source: str, problems: Sequence[str | Fault]) -> None:
        self.source = source
        self.faults = [Fault(one) if isinstance(one, str) else one for one in problems]
        self.problems = [str(fault) for fault in self.faults]
        super().__init__("; ".join(f"{source}: {problem}" for problem in self.problems))


class CommandError(MeshdError):
    """A program that meshd ran failed. It holds no secrets: stdin is not kept."""

    def __init__(self, argv: list[str], returncode: int, stderr: str) -> None:
        self.argv = argv
        self.returncode = returncode
        self.stderr = stderr
        super().__init__(f"{argv[0]} exited with {returncode}: {stderr.strip()[-400:] or 'no message'}")


class CommandTimeout(MeshdError):
    """A program ran past its deadline and was killed: its work may or may not be done."""

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
    """Slurm refused, or its answer cannot be parsed."""


class SlurmRefused(SlurmError):
    """Slurm refused a new configuration; the last good one is back in place."""


class SlotsKept(SlurmError):
    """Nothing is left to change in Slurm's files now: slots keep their old lines, since jobs may run there."""


class TailnetError(MeshdError):
    """tailscaled or the tailnet's control server refused, or cannot be reached."""


class NotNow(MeshdError):
    """There is no answer right now; try again in a moment."""


class TailnetRefused(TailnetError):
    """The control server or its API refused: repeating the request cannot help."""


class MungeError(MeshdError):
    """munged cannot encode or decode, or both sides do not share a key."""


class JoinRefused(MeshdError):
    """A machine may not join.

    Attributes:
        cure: what would let it join.
        fatal: False when a later try may work (the head is not ready); True when this machine can never join.
        code: stable; programs and tests compare it.
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
    """The lifecycle does not allow this change of a machine's phase."""


class ProviderError(MeshdError):
    """A call to a cloud failed.

    Attributes:
        vendor_text: the vendor's own text, for `meshctl events`.
        retry_after_s: when to try again; None when unknown.
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
    """The account's quota is used up; waiting does not help."""

    kind = "quota_exceeded"


class RateLimited(ProviderError):
    """Too many calls. Nothing happened; try again after `retry_after_s` seconds."""

    kind = "rate_limited"


class AuthFailed(ProviderError):
    """The credential is wrong, expired, lacks a permission, or the account is blocked."""

    kind = "auth_failed"


class ProviderOff(AuthFailed):
    """meshd cannot use this provider at all: its credential, settings or program are faulty. `cure` says what to do.

    The daemon raises it in place of an adapter that could not be created; adapters never raise it.
    """

    def __init__(self, text: str, cure: str, *, provider: str = "") -> None:
        self.cure = cure
        super().__init__(text, provider=provider)


class InvalidRequest(ProviderError):
    """The cloud calls the request invalid; sending it again cannot help."""

    kind = "invalid_request"


class Transient(ProviderError):
    """A fault on the cloud's side. The call changes nothing, or certainly had no effect."""

    kind = "transient"


class Uncertain(ProviderError):
    """The call may have had its effect: timeout, lost connection, 5xx, or an unreadable answer after sending."""

    kind = "uncertain"
