"""Exit codes, and the errors that end meshctl with them."""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import click

from meshd.api.schema import ErrorView
from meshd.runtime.terminal import clean


class Exit(IntEnum):
    """How meshctl ends. Part of its interface: scripts rely on it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CHANGES = 3
    UNREACHABLE = 4
    DENIED = 5
    PARTLY = 6
    TIMED_OUT = 7
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
  130  interrupted
"""


class CliError(click.ClickException):
    """Ends meshctl: what happened and where, then what to do next."""

    def __init__(self, text: str, cure: str = "", *, code: Exit = Exit.FAILED, kind: str = "error") -> None:
        super().__init__(text)
        self.cure = cure
        self.exit_code = int(code)  # type: ignore[misc]  # click declares it on the class and reads it from the instance
        self.kind = kind

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it for people, on stderr."""
        click.echo(f"error: {clean(self.message)}", file=file, err=file is None)
        if self.cure:
            click.echo(f"  do: {clean(self.cure)}", file=file, err=file is None)

    def view(self) -> ErrorView:
        """The same for programs."""
        return ErrorView(error=self.message, cure=self.cure, kind=self.kind)


class UnreachableError(CliError):
    """Nobody answers on the socket."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text, cure, code=Exit.UNREACHABLE, kind="unreachable")


class QuietError(CliError):
    """Ends meshctl with a code after all was said: prints one line, without the word error."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line, if there is one."""
        if self.message:
            click.echo(clean(self.message), file=file, err=file is None)
        if self.cure:
            click.echo(f"  {clean(self.cure)}", file=file, err=file is None)


def interrupted(text: str = "interrupted", cure: str = "") -> QuietError:
    """After Ctrl-C."""
    return QuietError(text, cure, code=Exit.INTERRUPTED, kind="interrupted")
