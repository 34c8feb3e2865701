"""What Slurm makes of a new munge key: head and nodes of real daemons switch this far apart, under load.

Six callers ask without a pause worth the name: `srun -N2`, `sbatch`, `sinfo` on the head, `squeue` on a node, job steps
on each of two nodes. Needs root and the sandbox's images.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.report import Row, report
from tests.integration.munge_lab import NODES, busy_cluster, described
from tests.integration.slurm_lab import Lab
from tests.integration.test_slurm_real import image_layers

LATE_MS = (0, 10, 100, 1000)
AWAY_S = (0.0, 0.2)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="switches of each kind")
    arguments = parser.parse_args()
    rows: list[Row] = []
    details = {}
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        lab = Lab(image_layers("trixie"), Path(directory) / "lab", suite="trixie")
        with busy_cluster(lab, pause_s=0.05) as cluster:
            for late_ms in LATE_MS:
                for away_s in AWAY_S:
                    name = f"nodes {late_ms:4} ms late, munged away {away_s * 1000:3.0f} ms"
                    late_s = dict.fromkeys(NODES, late_ms / 1000)
                    seen = []
                    for _ in range(arguments.times):
                        seen.append(cluster.change_key(late_s, away_s))
                        sys.stdout.write(f"{name}: {described(seen[-1])}\n")
                    refused = [sum(map(len, one.refused.values())) for one in seen]
                    rows.append(Row(f"{name}: calls refused, median", median(refused), ""))
                    rows.append(Row(f"{name}: refused for, most", max(one.refused_for_s for one in seen), "s"))
                    details[name] = {
                        "refused": refused, "calls": [one.count for one in seen],
                        "spread_ms": [round(one.spread_s * 1000) for one in seen],
                        "jobs": sorted(cluster.job_states().values()),
                    }  # fmt: skip
    report("munge", rows, {"switches": details})


if __name__ == "__main__":
    main()
