"""The agent's loop: join once, configure after each start, then long polls to the head until the machine ends."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

from . import commands, erase, heartbeat
from .backoff import Backoff
from .console import say
from .deadman import DeadMan
from .errors import HeadRefused, HeadUnreachable, Interrupted, NodeError, NotPossible
from .files import read_json, sha256_of, write_atomic
from .guard import MetadataGuard
from .headlink import HeadLink
from .join import configure, join
from .node import Node
from .path_watch import PathWatch
from .processes import look
from .tools import run
from .trouble import Trouble, stage_of

POLL_SLACK_S = 15.0
REBOOT_ASK_S = 5.0
PROBLEM_HOLD_S = 2.0
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
EXIT_DEAD_MAN = 75
BRING_UP_S = 8.0
SLURMD_STARTS_S = 0.5
SKEW_SAMPLES = 3


class Stopped(BaseException):
    """systemd or s6 stops the agent: the machine may be shutting down."""


def _stop(_number: int, _frame: object) -> None:
    raise Stopped


def shuts_down(node: Node) -> bool:
    """Whether systemd shuts the machine down, for a reboot or for good.

    Raises:
        ToolMissing, ToolTimeout: from systemctl.
    """
    return (
        node.systemd
        and "shutdown.target" in run([node.systemctl, "list-jobs", "--no-legend"], REBOOT_ASK_S, check=False).stdout
    )


def reboots(node: Node) -> bool:
    """Whether the machine is rebooting, or its container is stopped: it may come back, with the same files.

    Raises:
        ToolMissing, ToolTimeout: from systemctl.
    """
    if not node.systemd:
        return node.paths.pod_stopping.exists()
    jobs = run([node.systemctl, "list-jobs", "--no-legend"], REBOOT_ASK_S, check=False).stdout
    return any(f"{kind}.target" in jobs for kind in ("reboot", "soft-reboot", "kexec"))


class Watches:
    """What the service watches besides (`ServiceWatches`). This one watches nothing: `bring_up` is over too soon for
    that, and does not wait for the imports.
    """

    @property
    def version(self) -> int:
        """Grows when there is something to tell at once."""
        return 0

    @property
    def problem(self) -> str:
        """What is wrong with the machine's login, for people; "" when nothing is."""
        return ""

    def start(self) -> None:
        """Start to watch."""

    def notices(self) -> list[str]:
        """Notices that the head does not have yet, oldest first."""
        return []

    def drop_notices(self, count: int) -> None:
        """Drop the oldest `count` notices: the head has them."""

    def spot_notices(self) -> list[dict[str, Any]] | None:
        """What the cloud says of the end of this machine; None when that is not known."""
        return None


class Agent:
    """Connects the machine with the head.

    Args:
        node: the machine.
        link: to the head.
        token: the join token, until the head has accepted this machine; then the agent uses its node token.
        dead_man_s: the dead-man limit until the head sends one.
        refused_pause_s: pause after a refusal.
        watches: what is watched besides.
    """

    def __init__(
        self, node: Node, link: HeadLink, token: str, dead_man_s: float, refused_pause_s: float,
        watches: Watches | None = None,
    ) -> None:  # fmt: skip
        self._node = node
        self._link = link
        self._token = token
        self._refused_pause_s = refused_pause_s
        self._dead_man = DeadMan(node.state.dead_man_s if node.state.joined else dead_man_s)
        self._configured = False
        self._slurmd_due = False
        self._rejoin = not node.state.joined
        self._results: list[dict[str, Any]] = []
        self._problem = ""
        self._last_said = ""
        self._forgot = False
        self._trouble = Trouble(link, lambda: node.state.node_token or self._token)
        self._metadata = MetadataGuard(node)
        self._watches = watches or Watches()
        self._path_watch = PathWatch(node)
        node.clock_skew_s = lambda: link.clock_skew_s(SKEW_SAMPLES)

    def bring_up(self) -> None:
        """Join, and serve the head until it knows that slurmd runs; after BRING_UP_S the service goes on.

        All that may take minutes, and all that goes on, is left to the service: two processes must not do it.

        Raises:
            NodeError, OSError: the first failure. The service tries again, and reports it.
        """
        node, deadline = self._node, time.monotonic() + BRING_UP_S
        self._metadata.start()
        self._path_watch.start()
        node.sections.start(moved=self._link.interrupt, quick=True)
        while (left_s := deadline - time.monotonic()) > 0:
            self._get_ready()
            if node.sections.takes_long() or (node.state.slurmd_wanted and not self._results):
                return
            # The poll that tells of slurmd's start is held too: the service's start would slow down slurmd's.
            self._poll(min(SLURMD_STARTS_S if node.state.slurmd_wanted else self._hold_s(), left_s))

    def run(self) -> int:
        """Run until the dead-man switch ends the machine. Returns the exit code."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _stop)
        self._node.load.start()
        self._watches.start()
        self._metadata.start()
        self._path_watch.start()
        self._node.sections.start(moved=self._link.interrupt)
        try:
            return self._serve()
        except Stopped:
            self._say_goodbye()
            return 0

    def _serve(self) -> int:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        while True:
            pause_s = 0.0
            try:
                self._step()
                backoff.reset()
                self._last_said = ""
            except HeadRefused as error:
                if error.status == 401 and self._node.state.joined:
                    # the head does not know this machine: its journal was lost, or is older than the join
                    self._rejoin = True
                pause_s = self._refused_pause_s if error.fatal else min(self._refused_pause_s, 1 + backoff.next_s())
                self._say_once(f"the head refused: {error}", urgent=True)
            except HeadUnreachable as error:
                pause_s = backoff.next_s()
                self._say_once(str(error))
            except (NodeError, OSError) as error:
                pause_s = backoff.next_s()
                self._problem = str(error)
                self._say_once(str(error), urgent=isinstance(error, NotPossible))
                self._report_problem(error)
            if self._dead_man.left_s() <= 0 and not look(self._node.paths.proc).jobs:
                if self._node.systemd and not self._node.owned:
                    return self._end()
                self._go_on()
            time.sleep(min(pause_s, max(self._dead_man.left_s(), 0.05)))

    def _step(self) -> None:
        self._get_ready()
        self._poll(self._hold_s())

    def _hold_s(self) -> float:
        return self._path_watch.hold_s(self._node.state.poll_hold_s)

    def _get_ready(self) -> None:
        """What comes before a poll."""
        node = self._node
        if self._rejoin:
            join(node, self._link, self._token, self._trouble.report)
            self._dead_man.limit_s = node.state.dead_man_s
            self._dead_man.contact()
            self._rejoin = False
            self._configured = False
        if not self._configured:
            node.check_names()  # before slurmd: cloud-init may have rewritten /etc/hosts
            configure(node, self._link, self._trouble.report)
            self._configured = True
            self._problem = ""
            say("munge is proved both ways with the head")
            self._metadata.wait()  # before slurmd, and so before any user's job
            self._slurmd_due = node.state.slurmd_wanted and not node.slurmd.alive()
        if self._slurmd_due and not node.sections.lacking():
            self._slurmd_due = False
            if node.state.slurmd_wanted:
                node.slurmd.start()
        self._problem = ""  # all steps worked: no earlier failure is left

    def _poll(self, hold_s: float, phase: str = "") -> None:
        node = self._node
        notices = self._watches.notices()
        node.check_names()
        told = (node.sections.version, self._watches.version)
        body = {
            "phase": phase or self._phase(),
            "munge_ok": self._configured,
            "problem": (self._problem or self._watches.problem)[:1000],
            "notices": notices,
            "roster_version": node.state.roster_version,
            "auth_key_sha256": sha256_of(node.paths.auth_key),
            "spare_key_sha256": sha256_of(node.paths.spare_key),
            "metadata_open": self._metadata.open,
            "lacks": node.slurm_local.lacks,
            "sections": node.sections.report(),
            "faults": node.sections.faults(),
            "spot_notices": self._watches.spot_notices(),
            "hold_s": hold_s,
            "heartbeat": {
                **heartbeat.take(node.paths, node.load, node.systemd),
                "paths": self._path_watch.report(),
            },
            "results": self._results,
        }
        try:
            answer = self._link.call(
                "POST", "/v1/poll", node.state.node_token, body, hold_s + POLL_SLACK_S,
                outdated=None if phase else lambda: (node.sections.version, self._watches.version) != told,
            )  # fmt: skip
        except Interrupted:
            return  # the head was there; the next poll tells the news
        except HeadRefused as error:
            if error.status in (400, 413):
                # the head refuses a result: send only how each command ended with the next poll
                self._results = [{**one, "detail": str(one["detail"])[:400], "data": {}} for one in self._results]
            raise
        self._dead_man.contact()
        self._forget_join_token()
        self._results = []
        self._watches.drop_notices(len(notices))
        found = answer.get("commands") if isinstance(answer, dict) else None
        for command in found if isinstance(found, list) else ():
            if isinstance(command, dict):
                self._results.append(commands.carry_out(node, command))
        if node.munge_changed:
            node.munge_changed = self._configured = False

    def _forget_join_token(self) -> None:
        """Erase the spent join token, and the copies of stage 1 that each boot may make."""
        if not self._forgot:
            self._forgot = True
            erase.erase_stage1_copies(self._node.paths)
        if self._token:
            self._token = ""
            config = read_json(self._node.paths.join_file)
            config.pop("token", None)
            write_atomic(self._node.paths.join_file, json.dumps(config).encode(), 0o600)

    def _phase(self) -> str:
        state = self._node.state
        if state.left:
            return "left"
        if not self._configured:
            return "configuring"
        return "serving" if state.slurmd_wanted else "ready"

    def _report_problem(self, error: BaseException) -> None:
        """Report to the head what failed, and accept commands meanwhile: a new munge key may be the cure."""
        if not self._node.state.joined or self._rejoin:
            self._trouble.report(stage_of(error), str(error))
            return
        try:
            self._poll(PROBLEM_HOLD_S)
        except (NodeError, OSError) as second:
            self._say_once(str(second))

    def _say_once(self, text: str, urgent: bool = False) -> None:
        """Log a text once, not at each try."""
        if text != self._last_said:
            self._last_said = text
            say(text, urgent)

    def _say_goodbye(self) -> None:
        """Report a reboot: the head waits longer for a rebooting machine than for a lost one."""
        try:
            if self._node.state.joined and reboots(self._node):
                self._link.close()
                self._poll(0.0, "rebooting")
        except (NodeError, OSError) as error:
            say(f"the reboot was not reported to the head: {error}")
        try:
            if shuts_down(self._node):
                from . import shares  # most machines have none

                shares.detach(self._node)
        except (NodeError, OSError) as error:
            say(f"the shares were not detached: {error}")

    def _end(self) -> int:
        minutes = self._dead_man.limit_s / 60
        say(f"no contact with the head for {minutes:.0f} min and no job runs: powering off", urgent=True)
        try:
            run([self._node.systemctl, "poweroff"], 60.0)
        except (NodeError, OSError) as error:
            say(f"cannot power off: {error}", urgent=True)
        return EXIT_DEAD_MAN

    def _go_on(self) -> None:
        """A container that ends is started again by its cloud, and costs as much; an owned machine is its owner's."""
        minutes = self._dead_man.limit_s / 60
        say(f"no contact with the head for {minutes:.0f} min: this machine waits for the head", urgent=True)
        self._dead_man.contact()
