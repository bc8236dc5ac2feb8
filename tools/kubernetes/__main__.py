"""`python -m tools.kubernetes build | run`."""

import sys

from tools.kubernetes.commands import main

sys.exit(main())
