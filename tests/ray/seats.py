"""Assignments that a worker cannot join."""

import dataclasses

from horovod.runner.resident.residence import Residence


def one_that_nobody_gets(monkeypatch, number):
    """Send the worker of this number to a port without a listener."""
    usual = Residence.seat

    def seat(self, whose, *args):
        made = usual(self, whose, *args)
        return dataclasses.replace(made, door=1) if whose == number else made

    monkeypatch.setattr(Residence, "seat", seat)
