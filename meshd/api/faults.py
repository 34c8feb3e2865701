"""What the API answers when something fails: an HTTP status, a text, a cure, and a word for programs."""

from __future__ import annotations

from meshd import errors
from meshd.api.schema import ErrorView
from meshd.codes import RefusalCode


class ApiFault(errors.MeshdError):
    """A request that cannot be served.

    Args:
        text: why, for people.
        cure: what to do next.
        code: why, for programs; None where the class says it all.
    """

    status = 500
    kind = "error"

    def __init__(self, text: str, cure: str = "", *, code: RefusalCode | None = None) -> None:
        self.text = text
        self.cure = cure
        self.code = code
        super().__init__(text)


class BadRequest(ApiFault):
    """The request itself is wrong: sending it again cannot help."""

    status = 400
    kind = "bad_request"


class Denied(ApiFault):
    """The caller may not do this."""

    status = 403
    kind = "denied"


class Unknown(ApiFault):
    """There is no such machine, slot, pool or page."""

    status = 404
    kind = "unknown"


class Refused(ApiFault):
    """The request is well-formed, but the present state or limits of the cluster do not allow it."""

    status = 409
    kind = "refused"


class TooMany(ApiFault):
    """The caller has too many requests open."""

    status = 429
    kind = "too_many"


class NotReady(ApiFault):
    """meshd cannot answer: it is starting or stopping."""

    status = 503
    kind = "not_ready"


class TooSlow(ApiFault):
    """No answer within the API's own deadline."""

    status = 504
    kind = "too_slow"


_STATUS: tuple[tuple[type[errors.MeshdError], int, str, str], ...] = (
    (errors.IllegalMove, 409, "refused", "see the machine's phase in `meshctl nodes`"),
    (errors.ConfigError, 500, "config", "run `meshctl config check`"),
    (errors.StoreError, 500, "store", "check the disk that holds meshd's state, then `journalctl -u meshd`"),
    (errors.SlurmError, 502, "slurm", "check `scontrol ping` and `systemctl status slurmctld`"),
    (errors.TailnetError, 502, "tailnet", "check `tailscale status` on the head"),
    (errors.MungeError, 502, "munge", "check `systemctl status munge` and `munge -n | unmunge`"),
    (errors.CommandTimeout, 504, "too_slow", "try again; `meshctl doctor` shows which part is slow"),
    (errors.CommandNotFound, 500, "not_installed", "install it on the head"),
    (errors.CommandError, 502, "command", "run `meshctl doctor`"),
)

_PROVIDER: dict[str, tuple[int, str]] = {
    "not_found": (404, "run `meshctl nodes`"),
    "no_capacity": (409, "allow another provider, region or GPU, or try later"),
    "quota_exceeded": (409, "ask the provider for a higher quota, or allow another provider"),
    "rate_limited": (503, "try again in a minute"),
    "auth_failed": (502, "check the provider's credential, then `meshctl doctor`"),
    "transient": (503, "try again"),
    "uncertain": (503, "meshd finds out whether it happened: see `meshctl events`"),
}


def answer_to(error: errors.MeshdError) -> tuple[int, ErrorView]:
    """The HTTP status and the document for an error that meshd raised."""
    if isinstance(error, ApiFault):
        return error.status, ErrorView(error=error.text, cure=error.cure, kind=error.kind, code=error.code or "")
    if isinstance(error, errors.ProviderError):
        status, cure = _PROVIDER.get(error.kind, (502, "see `meshctl events`"))
        return status, ErrorView(error=str(error), cure=cure, kind=error.kind)
    for kind_of, status, kind, cure in _STATUS:
        if isinstance(error, kind_of):
            return status, ErrorView(error=str(error), cure=cure, kind=kind)
    return 500, ErrorView(error=str(error), cure="see `journalctl -u meshd`", kind="error")
