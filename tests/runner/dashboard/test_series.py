"""Time series."""

from horovod.runner.dashboard.history import POINTS, Series


def test_points_of_one_stretch_are_averaged_and_gaps_stay():
    series = Series(2)
    series.add(1, 0.2, [1.0, None])
    series.add(2, 0.9, [3.0, 5.0])
    series.add(3, 7.0, [4.0, None])
    assert series.since(0) == {"width": 1.0, "rows": [[0.0, 2.0, 5.0], [7.0, 4.0, None]]}
    assert series.since(2) == {"width": 1.0, "rows": [[7.0, 4.0, None]]}
    assert series.since(3) is None


def test_however_long_a_job_lasts_there_are_so_many_points():
    series = Series(1)
    for second in range(10_000):
        series.add(second + 1, second, [second])
    told = series.since(0)
    assert told["width"] == 64.0
    assert len(told["rows"]) <= POINTS
    assert told["rows"][0] == [0.0, 31.5]
    assert len(series.since(9_999)["rows"]) == 1  # only the last section
