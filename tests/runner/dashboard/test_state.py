"""The dashboard's state of a job, and its messages to pages."""

import sys

import msgspec

from horovod.common.contract import live, reasons
from horovod.runner.dashboard.state import NAMES, POINTS, Series, State, Tail, text
from tests.runner.dashboard.jobs import second, slots


def filled(size=2):
    state = State("python train.py", slots(size))
    for rank in range(size):
        state.started(rank, 100 + rank)
        state.add_report(reasons.encode(reasons.Called(rank, 100 + rank)), 1.0)
    return state


def test_pages_get_everything_first_and_then_changes():
    state = filled()
    first = state.since(0, 2.0)
    assert first["job"]["phase"] == "starting"
    assert (first["job"]["size"], first["job"]["hosts"], first["job"]["command"]) == (2, 1, "python train.py")
    assert [(r["rank"], r["host"], r["pid"], r["state"]) for r in first["ranks"]] == [
        (0, "host0", 100, "training"),
        (1, "host0", 101, "training"),
    ]
    assert state.since(first["version"], 3.0) == {"version": first["version"], "now": 3.0}
    state.phase("RUNNING")
    state.output(1, 1, b"hello\n")
    changes = state.since(first["version"], 4.0)
    assert changes["job"]["phase"] == "running"
    assert changes["lines"] == [{"rank": 1, "count": 1, "now": "", "lines": [[1, "hello"]]}]
    assert "ranks" not in changes


def test_steps_are_followed():
    state = filled()
    for at in range(3):
        for line in second(2, at, 20 * at, loss=1.0 - at / 4):
            state.add_report(line, 10.0 + at)
    diff = state.since(0, 13.0)
    assert (diff["job"]["made"], diff["job"]["rate"], diff["job"]["stepped"]) == (40, 20.0, 12.0)
    assert diff["job"]["last"].rank == 1
    named = diff["job"]["parts"]
    assert named["step"] == 0.05
    assert abs(sum(named[name] for name in ("data", "compute", "hidden", "exposed")) - 0.05) < 1e-9
    assert [row[:2] for row in diff["steps"]["rows"]] == [[11.0, 20.0], [12.0, 20.0]]
    assert diff["ranks"][1]["share"] == 0.7
    (value,) = diff["values"]
    assert (value["name"], value["mean"], value["ranks"]) == ("loss", 0.5, 2)
    assert value["course"]["rows"] == [[10.0, 1.0], [11.0, 0.75], [12.0, 0.5]]
    version = diff["version"]
    for line in second(2, 2, 40):
        state.add_report(line, 14.0)
    assert state.since(version, 14.0) == {"version": version, "now": 14.0}  # an unchanged state sends nothing new


def test_waiting_operations_come_and_go():
    state = filled()
    waiting = [
        {"name": 'grad/"<i>"\n重み', "age": 3.0, "ready": [0], "missing": [1]},
        {"name": "b", "age": 9.0, "ready": [0], "missing": [1]},
    ]
    state.add_report(live.encode(live.of_waits(waiting, "rank 1 sleeps")), 1.0)
    diff = state.since(0, 1.0)["waiting"]
    assert (diff["total"], diff["why"]) == (2, "rank 1 sleeps")
    assert [row["name"] for row in diff["rows"]] == ["b", 'grad/"<i>" 重み']
    assert diff["rows"][0] == {"name": "b", "age": 9.0, "ready": 1, "lacking": 1, "missing": [1]}
    version = state.version
    state.add_report(live.encode(live.of_waits([], "")), 2.0)
    assert state.since(version, 2.0)["waiting"] == {"total": 0, "rows": [], "why": ""}


def test_end_events_are_reported_and_kept():
    state = filled()
    state.exited(0, "exit code 0", failed=False)
    state.exited(1, "killed by signal 9 (SIGKILL)", failed=True)
    state.end(137, "rank 1 on host host0 failed first: killed by signal 9\n<script>alert(1)</script>", 1, 12.34)
    state.phase("ENDED")
    diff = state.since(0, 20.0)
    assert [(r["state"], r["end"]) for r in diff["ranks"]] == [
        ("ended", "exit code 0"),
        ("failed", "killed by signal 9 (SIGKILL)"),
    ]
    assert diff["job"]["phase"] == "failed"
    assert (diff["job"]["ended"]["code"], diff["job"]["ended"]["rank"], diff["job"]["ended"]["after"]) == (137, 1, 12.3)
    assert diff["job"]["ended"]["message"].endswith("\n<script>alert(1)</script>")


def test_memory_is_bounded_whatever_ranks_print_and_report():
    state = filled(4)
    for i in range(300):
        state.output(i % 4, 1 + i % 2, b"word " * 20_000 + b"\n" * (i % 50))
        values = [live.Value(f"n{i}.{j}", 1.0, 1.0, 1.0, 1) for j in range(20)]
        for line in live.packed([], values):
            state.add_report(line, float(i))
        state.add_message("x" * 10_000)
    diff = msgspec.json.encode(state.since(0, 1.0))
    assert len(state._values) == NAMES
    assert len(diff) < 400_000
    assert sys.getsizeof(diff) < 400_100


def test_points_of_one_interval_are_averaged_and_gaps_kept():
    series = Series(2)
    series.add(1, 0.2, [1.0, None])
    series.add(2, 0.9, [3.0, 5.0])
    series.add(3, 7.0, [4.0, None])
    assert series.since(0) == {"width": 1.0, "rows": [[0.0, 2.0, 5.0], [7.0, 4.0, None]]}
    assert series.since(2) == {"width": 1.0, "rows": [[7.0, 4.0, None]]}
    assert series.since(3) is None


def test_series_have_a_bounded_number_of_points():
    series = Series(1)
    for step in range(10_000):
        series.add(step + 1, step, [step])
    diff = series.since(0)
    assert diff["width"] == 64.0
    assert len(diff["rows"]) <= POINTS
    assert diff["rows"][0] == [0.0, 31.5]
    assert len(series.since(9_999)["rows"]) == 1  # only the last section


def lines(tail):
    return [line.text for line in tail.lines]


def test_lines_are_assembled_from_chunks_of_two_streams():
    tail = Tail(10)
    for piece in (b"a", b"b\nc", b"", b"d"):
        tail.feed(1, 1, piece)
    tail.feed(2, 2, b"error\n")
    assert (lines(tail), tail.now, tail.count) == (["ab", "error"], "", 2)
    tail.feed(3, 1, b"\n")
    assert [(line.stream, line.text) for line in tail.lines] == [(1, "ab"), (2, "error"), (1, "cd")]
    assert tail.lines[-1].version == 3


def test_partial_lines_and_current_bars_are_shown():
    tail = Tail(10)
    tail.feed(1, 1, b" 10%\r 20%\r")
    assert (tail.now, tail.last) == (" 20%", " 20%")
    tail.feed(2, 1, b" 30%")
    assert tail.now == " 30%"
    tail.feed(3, 1, b"\r100%\r\n")
    assert (lines(tail), tail.now) == (["100%"], "")
    tail.feed(4, 1, b"dos\r\nlines\r\n")
    assert lines(tail)[1:] == ["dos", "lines"]


def test_colours_and_controls_are_removed_and_letters_kept():
    tail = Tail(10)
    tail.feed(1, 1, '\x1b[31;1mGröße\x1b[0m 日本語 "<b>" \'\x07\x00\x9b\t\x1b]0;title\x07end\xff\n'.encode())
    tail.feed(1, 1, b"not \xff UTF-8\n")
    assert lines(tail) == ['Größe 日本語 "<b>" \'\tendÿ', "not \ufffd UTF-8"]
    assert text("\udcff\n") == "? "
