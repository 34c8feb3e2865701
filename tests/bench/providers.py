"""What each provider costs the daemon: time to import, and memory, with none, each alone, and all five enabled.

Each set runs in a fresh interpreter: the daemon's modules are imported, the adapters loaded, and each is asked for its
offers and its machines, against the stand-ins. `import` is the daemon's modules and the adapters; `first look` is the
first offers and list of all enabled providers side by side, in which Google's SDK is imported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.report import Row, report

KEY = "bench-key"
RSS_TARGET_MIB = 250.0
"""For all five together."""


def rss_mib() -> float:
    """Resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def _measure(tables: dict[str, Any]) -> dict[str, float]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    import meshd.daemon.main  # noqa: F401  what is measured
    from meshd.config import Settings
    from meshd.daemon.providers.registry import load_providers

    providers = load_providers(Settings(providers=tables), lambda: datetime.now(UTC), lambda _: None)
    found = {"import_s": time.perf_counter() - began_s, "import_mib": rss_mib()}
    looked_s = time.perf_counter()
    for _ in range(2):
        await asyncio.gather(*(p.offers() for p in providers.values()), *(p.list() for p in providers.values()))
        found.setdefault("look_s", time.perf_counter() - looked_s)
    found |= {"cpu_s": time.process_time() - cpu_s, "rss_mib": rss_mib()}
    for provider in providers.values():
        await provider.aclose()
    return found


def _tables(urls: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {
        "lambda": {"base_url": urls["lambda"], "api_key": KEY, "call_spacing_s": 0},
        "paperspace": {"base_url": urls["paperspace"], "api_key": KEY, "call_spacing_s": 0},
        "runpod": {"base_url": urls["runpod"], "api_key": KEY},
        "aws": {"endpoint_url": urls["ec2"], "access_key_id": "AKIASANDBOX", "secret_access_key": KEY},
        "gce": {"api_endpoint": urls["gce"], "anonymous": True, "project": "sandbox-project", "call_timeout_s": 120},
    }


async def _child(tables: dict[str, Any]) -> dict[str, float]:
    argv = [sys.executable, "-W", "ignore", "-m", "tests.bench.providers", "--child", json.dumps(tables)]
    child = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    out, _ = await child.communicate()
    if child.returncode != 0:
        raise SystemExit(f"the measurement of {', '.join(tables) or 'no provider'} failed")
    found: dict[str, float] = json.loads(out)
    return found


async def _run(runs: int) -> None:
    # Only here: in a child it would be measured too.
    from deploy.sandbox.clouds.server import CloudServer, ServerOptions
    from deploy.sandbox.hypervisor import HollowHypervisor

    options = ServerOptions(
        lambda_api_key=KEY, paperspace_api_key=KEY, runpod_api_key=KEY, lambda_limits=(0, 0), runpod_per_minute=0
    )
    async with CloudServer(HollowHypervisor(), options) as server:
        tables = _tables(server.urls())
        sets = {"none": {}, **{name: {name: table} for name, table in tables.items()}, "all five": tables}
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in sets}
        for _ in range(runs):
            for name, chosen in sets.items():
                seen[name].append(await _child(chosen))
    middle = {name: {key: median(one[key] for one in found) for key in found[0]} for name, found in seen.items()}
    rows = [
        row
        for name, found in middle.items()
        for row in (
            Row(f"{name}: import", found["import_s"], "s"),
            Row(f"{name}: first look", found["look_s"], "s"),
            Row(f"{name}: CPU, both", found["cpu_s"], "s"),
            Row(f"{name}: memory after import", found["import_mib"], "MiB"),
            Row(f"{name}: memory", found["rss_mib"], "MiB", RSS_TARGET_MIB if name == "all five" else None),
        )
    ]
    report("providers", rows, {"runs": runs, "sets": middle})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        json.dump(asyncio.run(_measure(json.loads(arguments.child))), sys.stdout)
    else:
        asyncio.run(_run(arguments.runs))


if __name__ == "__main__":
    main()
