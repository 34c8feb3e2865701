"""Which processes belong to whom, as the sandbox looks it up at every step."""

from __future__ import annotations

import os
import subprocess
import threading

from deploy.sandbox.processes import children, children_by_parent


def test_children_of_every_thread_are_found_both_ways() -> None:
    begun: list[subprocess.Popen[bytes]] = [subprocess.Popen(["sleep", "60"])]
    both, asked = threading.Event(), threading.Event()

    def beside() -> None:
        begun.append(subprocess.Popen(["sleep", "60"]))
        both.set()
        asked.wait(60)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        assert both.wait(60)
        mine = {process.pid for process in begun}
        assert mine <= set(children(os.getpid()))
        assert children(os.getpid()) == children_by_parent(os.getpid())
    finally:
        asked.set()
        thread.join()
        for process in begun:
            process.kill()
            process.wait()
    assert not mine & set(children(os.getpid()))


def test_a_process_that_is_gone_has_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert children(process.pid) == []
