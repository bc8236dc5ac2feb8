"""`python -m tools.kafka fetch | run | start | stop`."""

import sys

from tools.kafka.broker import main

sys.exit(main())
