"""Entry point of `python -m horovod.runner`, which is the same command as `horovodrun`."""

import sys

from horovod.runner.launch import main

sys.exit(main())
