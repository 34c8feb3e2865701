"""`python -m deploy.sandbox.demo`, which deploy/demo runs."""

import sys

from deploy.sandbox.demo.cli import main

sys.exit(main())
