"""`meshd`, or `python -m meshd`: the daemon's command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from meshd import __version__, config
from meshd.api.connections import raise_descriptor_limit
from meshd.daemon.main import live
from meshd.errors import ConfigError, MeshdError
from meshd.obs import log as logging


def main() -> None:
    """Ends with 0 after a clean stop, 1 for a fault, 2 for settings that are wrong."""
    parser = argparse.ArgumentParser(prog="meshd", description="One Slurm cluster out of rented GPU machines.")
    parser.add_argument("--config", type=Path, default=config.DEFAULT_PATH, help="settings (default: %(default)s)")
    parser.add_argument("--version", action="version", version=f"meshd {__version__}")
    arguments = parser.parse_args()
    try:
        settings = config.load(arguments.config)
        logging.set_up(settings.log)
        raise_descriptor_limit()
        asyncio.run(live(settings, arguments.config))
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"meshd: {error.source}: {problem}\n")
        sys.exit(2)
    except MeshdError as error:
        sys.stderr.write(f"meshd: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
