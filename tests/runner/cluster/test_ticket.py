import platform

from horovod import __version__
from horovod.runner.cluster.ticket import Arrival, judge, number_of, place_of


def arrival(version=__version__, python=""):
    return Arrival(version, python or platform.python_version(), "host", "machine", "task 1")


def test_who_fits():
    assert judge(arrival()) == ""
    major, minor, _ = platform.python_version_tuple()
    assert judge(arrival(python=f"{major}.{minor}.99")) == ""
    assert "it has horovod 0.0.1, the launcher" in judge(arrival(version="0.0.1"))
    assert f"it runs Python {major}.1{minor}.0, the launcher" in judge(arrival(python=f"{major}.1{minor}.0"))


def test_numbers_travel_in_the_place():
    assert [number_of(place_of(number)) for number in (0, 1, 70000)] == [0, 1, 70000]
    assert place_of(0).source != place_of(0).target
