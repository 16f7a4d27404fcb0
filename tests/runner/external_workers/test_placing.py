"""Placement of workers, and which workers are compatible."""

import dataclasses

from horovod.runner.external_workers import assignment
from horovod.runner.external_workers.assignment import ExternalWorker


def worker(name, machine="m", **other):
    return ExternalWorker(
        name, machine, other.pop("pid", 1), other.pop("version", "1.0"), other.pop("python", "3.11"), b""
    )


def test_hosts_with_one_name_are_distinguished_by_machine():
    workers = [worker("a", "1"), worker("a", "2"), worker("b", "3"), worker("a", "1")]
    assert assignment.hosts(workers) == ["a", "a#2", "b", "a"]


def test_slots_are_in_the_order_of_ranks():
    slots = assignment.slots(["a", "b", "a"])
    assert [dataclasses.astuple(one)[:7] for one in slots] == [
        (0, 3, 0, 2, 0, 2, "a"),
        (1, 3, 0, 1, 1, 2, "b"),
        (2, 3, 1, 2, 0, 1, "a"),
    ]


def test_workers_of_one_kind_fit():
    assert assignment.misfit([worker("a"), worker("b")], "1.0") == ""


def test_version_mismatches_name_both_versions():
    text = assignment.misfit([worker("a"), worker("b", pid=7, version="2.0")], "1.0")
    assert "worker 1 (host b, pid 7) has horovod 2.0" in text
    assert "the driver has 1.0" in text
