"""The files of a pod (deploy/container): in our own image they are there, elsewhere the agent lays them out."""

from __future__ import annotations

from collections.abc import Callable

from .console import say
from .errors import NotPossible
from .files import write_atomic
from .packages import ensure
from .paths import Paths
from .tools import find, run

BUILT = {"meshnet": ("libmeshnet.so", "meshnetd"), "slurmconf": ("libslurmconf.so",)}
"""What is compiled, by the directory of its sources and its Makefile."""

COMPILE_S = 120.0


def lay_out(paths: Paths) -> bool:
    """Copy the files from the agent's archive where there are none. Returns whether it did.

    An image's own files are never replaced: its services run by them already.
    """
    entry = paths.pod / "entrypoint"
    if entry.exists():
        return False
    source = paths.agent / "pod"
    found = [path for path in sorted(source.rglob("*")) if path.is_file()]
    # the entry point comes last: where it is, all is
    for path in sorted(found, key=lambda one: one.name == entry.name):
        data = path.read_bytes()
        target = paths.pod / path.relative_to(source)
        write_atomic(target, data, 0o755 if data.startswith(b"#!") else 0o644)
        for directory in target.parents:  # by any umask: every program loads the libraries
            if paths.pod.parent in (directory, *directory.parents):
                directory.chmod(0o755)
    return entry.exists()


def build(paths: Paths, report: Callable[[str], None] = lambda _text: None) -> None:
    """Lay out the files, and compile what is missing. Installs a compiler only where there is none.

    Args:
        paths: the machine's paths.
        report: called with the error text of each try to install a compiler that fails.

    Raises:
        NotPossible, ToolFailed: it cannot be compiled here.
    """
    lay_out(paths)
    missing = {place: names for place, names in BUILT.items() if not all((paths.pod / name).exists() for name in names)}
    if not missing:
        return
    tools = {"gcc": find("cc"), "make": find("make"), "libc6-dev": (paths.root / "usr/include/stdlib.h").exists()}
    ensure(paths, [package for package, there in tools.items() if not there], report)
    for place, names in missing.items():
        sources = paths.pod / place
        if not (sources / "Makefile").is_file():
            raise NotPossible(f"the sources of {names[0]} are missing here", "this is a fault of meshd: report it")
        say(f"compiling {', '.join(names)}")
        run(["make", "--silent", "-C", str(sources), *names], COMPILE_S)
        for name in names:
            (sources / name).chmod(0o755)
            (sources / name).replace(paths.pod / name)
