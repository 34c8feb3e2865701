"""`meshd`, or `python -m meshd`: the daemon."""

from __future__ import annotations

from meshd.daemon.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
