"""The head itself: `meshctl doctor`, `init` and `version`, who the caller is, and why a request failed."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Part, Request


class CheckRow(Part):
    """One check of `meshctl doctor`, or of the settings; status is ok, warn or fail.

    Attributes:
        name: which check of doctor it is (docs/codes.md): stable. For settings: the file and line.
        code: what is wrong (docs/codes.md): stable; "" when nothing is.
        at: when meshd got the answer; None when not known.
    """

    name: str
    status: str
    code: str = ""
    text: str
    cure: str = ""
    at: AwareDatetime | None = None


class DoctorView(Document):
    """All checks. `source` is `daemon`, or `local` when the daemon could not be asked.

    Attributes:
        at: when this was written, by the head's clock. The ages of the rows count up to this time.
    """

    checks: list[CheckRow] = []
    source: str = "daemon"
    at: AwareDatetime | None = None


class InitChange(Part):
    """A file that `meshctl init` writes. `diff` is a unified diff; a secret's content is never in it."""

    path: str
    reasons: list[str] = []
    diff: str = ""
    backup: str = ""


class InitFinding(Part):
    """What `meshctl init` does not change and a person should look at. The code is stable, the text is not."""

    code: str
    text: str


class InitView(Document):
    """What `meshctl init` would do or has done, and what a person has to do then.

    Attributes:
        actions: what it does beside writing files.
    """

    changes: list[InitChange] = []
    actions: list[str] = []
    warnings: list[str] = []
    findings: list[InitFinding] = []
    applied: bool = False
    next: list[str] = []


class VersionView(Document):
    """Versions of what runs on the head; "" when not known."""

    meshd: str
    cluster: str = ""
    python: str = ""
    slurm: str = ""
    tailscale: str = ""
    providers: dict[str, str] = {}


class CallerView(Document):
    """The caller, as meshd sees it."""

    uid: int
    user: str
    may_write: bool
    group: str


class ErrorView(Document):
    """Why a request failed and what to do next.

    Attributes:
        kind: the class of the failure, e.g. `refused` (docs/codes.md): stable.
        code: the reason within that class (docs/codes.md): stable; "" where `kind` says it all.
    """

    error: str
    cure: str = ""
    kind: str = "error"
    code: str = ""


class ReloadRequest(Request):
    """Read the settings again."""


class ReloadView(Document):
    """The answer to a ReloadRequest.

    Attributes:
        reloaded: the new settings are in force, except for the tables in `waiting`.
        faults: what is wrong with the file; if there are any, the old settings stay in force.
        waiting: changed tables that need a restart.
    """

    reloaded: bool
    faults: list[CheckRow] = []
    waiting: list[str] = []
