"""Placement of workers, and which workers are compatible."""

import dataclasses

from horovod.runner.resident import placing
from horovod.runner.resident.seat import Resident


def resident(name, machine="m", **other):
    return Resident(name, machine, other.pop("pid", 1), other.pop("version", "1.0"), other.pop("python", "3.11"), b"")


def test_hosts_of_one_name_are_told_apart_by_their_machines():
    given = [resident("a", "1"), resident("a", "2"), resident("b", "3"), resident("a", "1")]
    assert placing.hosts(given) == ["a", "a#2", "b", "a"]


def test_seats_are_in_the_order_of_ranks():
    seats = placing.seats(["a", "b", "a"])
    assert [dataclasses.astuple(one)[:7] for one in seats] == [
        (0, 3, 0, 2, 0, 2, "a"),
        (1, 3, 0, 1, 1, 2, "b"),
        (2, 3, 1, 2, 0, 1, "a"),
    ]


def test_residents_of_one_kind_fit():
    assert placing.misfit([resident("a"), resident("b")], "1.0") == ""


def test_another_version_is_named_with_both():
    text = placing.misfit([resident("a"), resident("b", pid=7, version="2.0")], "1.0")
    assert "worker 1 (host b, pid 7) has horovod 2.0" in text
    assert "the driver has 1.0" in text


def test_another_python_is_named_with_both():
    text = placing.misfit([resident("a"), resident("b", python="3.12")], "1.0")
    assert "worker 1" in text
    assert "Python 3.12, worker 0 has 3.11" in text
