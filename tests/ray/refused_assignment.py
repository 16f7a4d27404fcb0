"""Assignments that a worker cannot join."""

import dataclasses

from horovod.runner.external_workers.workers import ExternalWorkers


def one_that_nobody_gets(monkeypatch, number):
    """Send the worker of this number to a port without a listener."""
    usual = ExternalWorkers.assign

    def assign(self, whose, *args):
        made = usual(self, whose, *args)
        return dataclasses.replace(made, key_port=1) if whose == number else made

    monkeypatch.setattr(ExternalWorkers, "assign", assign)
