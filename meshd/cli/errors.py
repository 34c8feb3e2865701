"""Exit codes, and the errors that end meshctl with them."""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import click

from meshd.api.schema import ErrorView
from meshd.runtime.terminal import clean


class ExitCode(IntEnum):
    """meshctl's exit codes. Scripts rely on them: a number keeps its meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CHANGES = 3
    UNREACHABLE = 4
    DENIED = 5
    PARTLY = 6
    TIMED_OUT = 7
    LEAKED = 8
    NOT_LISTED = 9
    INTERRUPTED = 130


EXIT_CODES_HELP = """\b
Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    changes are pending (plan --exit-code)
  4    the daemon cannot be reached
  5    denied
  6    partly done
  7    timed out
  8    something leaked (audit)
  9    something could not be listed (audit)
  130  interrupted
"""


class CliError(click.ClickException):
    """Ends meshctl with an exit code.

    Args:
        text: what happened, and to what.
        cure: what the user can do about it.
        code: the exit code.
        kind: the error's stable word in `-o json`.
        refusal: the daemon's code of a refusal, likewise stable; "" for none.
    """

    def __init__(
        self, text: str, cure: str = "", *, code: ExitCode = ExitCode.FAILED, kind: str = "error", refusal: str = ""
    ) -> None:
        super().__init__(text)
        self.cure = cure
        self.exit_code = int(code)  # type: ignore[misc]  # click declares it on the class and reads it from the instance
        self.kind = kind
        self.refusal = refusal

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error on stderr."""
        click.echo(f"error: {clean(self.message)}", file=file, err=file is None)
        if self.cure:
            click.echo(f"  do: {clean(self.cure)}", file=file, err=file is None)

    def view(self) -> ErrorView:
        """The document that `-o json` prints for this error."""
        return ErrorView(error=self.message, cure=self.cure, kind=self.kind, code=self.refusal)


class UnreachableError(CliError):
    """meshd does not answer on its socket."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text, cure, code=ExitCode.UNREACHABLE, kind="unreachable")


class QuietError(CliError):
    """Ends meshctl where nothing went wrong, e.g. after Ctrl-C or a no: it prints no word `error`."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the text on stderr, if there is one."""
        if self.message:
            click.echo(clean(self.message), file=file, err=file is None)
        if self.cure:
            click.echo(f"  {clean(self.cure)}", file=file, err=file is None)


def interrupted(text: str = "interrupted", cure: str = "") -> QuietError:
    """The error that ends meshctl after Ctrl-C."""
    return QuietError(text, cure, code=ExitCode.INTERRUPTED, kind="interrupted")
