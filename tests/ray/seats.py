"""Seats that cannot be taken."""

import dataclasses

from horovod.runner.resident.residence import Residence


def one_that_nobody_gets(monkeypatch, number):
    """The worker of this number is sent to a port at which nobody is."""
    usual = Residence.seat

    def seat(self, whose, *args):
        made = usual(self, whose, *args)
        return dataclasses.replace(made, door=1) if whose == number else made

    monkeypatch.setattr(Residence, "seat", seat)
