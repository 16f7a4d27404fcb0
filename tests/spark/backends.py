"""Backends for tests."""

import os

from horovod.spark.common.backend import Backend


class InThisProcess(Backend):
    """A single rank in this process, without Spark and without starting a process."""

    def num_processes(self):
        return 1

    def run(self, fn, args=(), kwargs=None, env=None):
        before = dict(os.environ)
        try:
            return [fn(*args, **(kwargs or {}))]
        finally:
            os.environ.clear()
            os.environ.update(before)
