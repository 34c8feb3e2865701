"""The agent's exceptions. Texts say what happened and what to do; none holds a secret."""

from __future__ import annotations


class NodeError(Exception):
    """Root of all exceptions that the agent raises.

    Attributes:
        stage: the part of the join that failed, by its name in the head's API.
    """

    stage = "agent"


class ToolMissing(NodeError):
    """A program is not installed."""

    def __init__(self, program: str) -> None:
        self.program = program
        super().__init__(f"{program} is not installed or not on PATH")


class ToolFailed(NodeError):
    """A program failed."""

    def __init__(self, program: str, returncode: int, text: str) -> None:
        self.program = program
        self.returncode = returncode
        super().__init__(f"{program} exited with {returncode}: {text.strip()[-400:] or 'no message'}")


class ToolTimeout(NodeError):
    """A program did not end in time and was killed."""

    def __init__(self, program: str, timeout_s: float) -> None:
        self.program = program
        super().__init__(f"{program} did not finish within {timeout_s:g} s")


class ToolHangs(ToolTimeout):
    """A killed program does not end, since the kernel blocks it. The agent does not start it again meanwhile."""

    def __init__(self, program: str, pid: int) -> None:
        self.program = program
        NodeError.__init__(
            self, f"{program} (process {pid}) hangs, and cannot be killed: the device that it waits for does not answer"
        )


class NotPossible(NodeError):
    """This machine cannot become a node in its present state. `cure` says what would help."""

    def __init__(self, reason: str, cure: str, stage: str = "agent") -> None:
        self.reason = reason
        self.cure = cure
        self.stage = stage
        super().__init__(f"{reason} ({cure})")


class Hopeless(NodeError):
    """A section of the node settings failed, and trying again cannot help."""


class Interrupted(NodeError):
    """A call to the head was ended, since there is something new to tell it."""


class NoSuchPackage(NotPossible, Hopeless):
    """apt does not know a package, after complete updates of its lists."""


class MungeFault(NodeError):
    """munge does not work, alone or with the head."""


class HeadUnreachable(NodeError):
    """No answer from the head: it restarts, or the tailnet is broken."""


class HeadRefused(NodeError):
    """The head refused.

    Attributes:
        status: HTTP status.
        fatal: whether the head says that trying again cannot help.
        code: the head's word for the reason.
    """

    def __init__(self, status: int, reason: str, cure: str, fatal: bool, code: str = "") -> None:
        self.status = status
        self.reason = reason
        self.cure = cure
        self.fatal = fatal
        self.code = code
        super().__init__(f"{reason} ({cure})" if cure else reason)
