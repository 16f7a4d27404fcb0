"""A run ends with a list of its slowest tests."""

from tests import slowest


def test_the_slowest_and_their_share():
    seconds = {"a": 1.0, "b": 6.0, "c": 3.0}
    lines = slowest.summary(seconds, 2)
    assert lines[0] == "the 2 slowest of 3 tests took 9.0 of 10.0 s, 90%:"
    assert [line.split() for line in lines[1:]] == [["6.0", "s", "b"], ["3.0", "s", "c"]]
    assert slowest.summary({}, 20) == []
    assert "0%" in slowest.summary({"a": 0.0}, 20)[0]
