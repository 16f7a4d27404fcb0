"""python -m horovod.timeline on made-up files: findings, merging, output, and handling of other files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.timeline.__main__ import main
from horovod.timeline.merge import base_of, merge, operations, to_common
from horovod.timeline.read import find, read
from horovod.timeline.summary import render, summarize
from tests.timeline.traces import Maker

NAME = 'Gewicht "größe"\n重み'


def two_ranks(folder: Path) -> Path:
    """Return files of two ranks.

    Rank 1's clock began 1 ms later and runs 2 ms ahead of rank 0's. Rank 1 is last by 300 us, then rank 0 by 50.
    """
    zero = Maker(0, 2, start_ns=1_000_000_000)
    zero.negotiated(NAME, 1, ready=100, agreed=420, start=430, end=500)
    zero.scheduled("b", 2, ready=1050, start=1060, end=1100)
    one = Maker(1, 2, start_ns=1_003_000_000, clock=(-2_000_000, 1_000))
    one.negotiated(NAME, 1, ready=400 - 1000, agreed=425 - 1000, start=435 - 1000, end=505 - 1000)
    one.scheduled("b", 2, ready=1000 - 1000, start=1060 - 1000, end=1105 - 1000)
    one.write(folder / "t.rank1.json")
    return zero.write(folder / "t.json")


def test_finds_the_files_of_all_ranks(tmp_path):
    path = two_ranks(tmp_path)
    (tmp_path / "t.rank1.before.json").write_text("[]")
    (tmp_path / "t.rankle.json").write_text("")
    Maker(10, 2).write(tmp_path / "t.rank10.json")
    names = [Path(name).name for name in find([str(path)])]
    assert names == ["t.json", "t.rank1.before.json", "t.rank1.json", "t.rank10.json"]
    assert find([str(path), str(tmp_path / "t.rank1.json")])[0] == str(path)
    with pytest.raises(FileNotFoundError, match=r"none\.json: no such file"):
        find([str(tmp_path / "none.json")])


def test_clocks_are_aligned_and_operations_found(tmp_path):
    traces = [read(name) for name in find([str(two_ranks(tmp_path))])]
    base = base_of(traces)
    assert base == 1_000_000_000
    first, second = operations(traces[1], to_common(traces[1], base))
    assert (first.name, first.number, first.kind, first.scheduled) == (NAME, 1, "ALLREDUCE", False)
    assert [first.announced, first.agreed, first.start, first.ended] == [400, 425, 435, 505]
    assert (first.packed, first.carried) == (1, 69)
    assert (second.announced, second.start, second.scheduled) == (1000, 1060, True)


def test_drifting_clocks_are_tracked(tmp_path):
    maker = Maker(1, 2, clock=(0, 5))
    maker.clock(1000, 100_000, 5)
    trace = read(str(maker.write(tmp_path / "t.json")))
    convert = to_common(trace, 0)
    assert [convert(at) for at in (-5, 0, 500, 1000, 2000)] == [-5, 0, 550, 1100, 2100]


def test_the_summary_shows_which_ranks_waited(tmp_path):
    traces = [read(name) for name in find([str(two_ranks(tmp_path))])]
    summary = summarize(traces)
    zero, one = summary.ranks[0], summary.ranks[1]
    assert (zero.operations, zero.last, zero.waited) == (2, 1, 300)
    assert dict(zero.waited_for) == {1: 300}
    assert (one.last, one.waited) == (1, 50)
    assert summary.tensors[NAME, 0][0].negotiated == 20
    assert summary.tensors[NAME, 0][1].negotiated == 25
    assert summary.tensors["b", 0][0].queued == 10
    assert (summary.tensors["b", 0][1].packed, summary.tensors["b", 0][1].carried) == (1, 44)
    text = render(summary)
    assert "Clocks of hosts were compared to within 1 us" in text
    lines = [line for line in text.splitlines() if line.split()[:1] == ["b"]]
    assert lines[0].split() == ["b", "0", "1", "1", "0.000", "-", "0.000", "0.010", "0.001", "0.039"]
    assert lines[1].split()[3:6] == ["0", "0.050", "rank"]


def test_tensors_that_ranks_waited_for_longest_come_first_and_ten_are_shown(tmp_path):
    zero, one = Maker(0, 2), Maker(1, 2)
    for number in range(12):
        # Later operations wait longer, and earlier ones take longer to execute.
        ready, start = 10_000 * number, 10_000 * number + 1000
        end = start + 5000 - 100 * number
        zero.scheduled(f"t{number}", number + 1, ready=ready, start=start, end=end)
        one.scheduled(f"t{number}", number + 1, ready=ready + 10 * number, start=start, end=end)
    summary = summary_of(tmp_path, zero, one)
    names = [f"t{number}" for number in range(11, -1, -1)]
    assert [name for name, _ in summary.tensors] == names
    lines = [line.split() for line in render(summary).splitlines()]
    assert list(dict.fromkeys(fields[0] for fields in lines if fields[:1] and fields[0] in names)) == names[:10]
    assert "... and 2 more; --tensors N shows more, --json all" in render(summary)
    assert "more; --tensors" not in render(summary, 12)


def test_missing_clocks_and_ranks_are_reported(tmp_path, capsys):
    maker = Maker(0, 3, clock=None)
    maker.scheduled("b\x1b[2J", 1, ready=300, start=400, end=500)
    maker.events.append({"ph": "i", "pid": 0, "tid": 0, "ts": 1, "name": "LOST", "s": "g", "args": {"events": 7}})
    path = maker.write(tmp_path / "t.json")
    assert main(["summary", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "No file of ranks 1, 2" in out
    assert "7 events are missing" in out
    assert "\x1b" not in out, "a terminal would obey it"
    assert "b\\x1b[2J" in out
    assert "the offset of its clock to that of rank 0 is unknown" in err
    # A truncated file is used as far as it goes.
    text = path.read_text()
    path.write_text(text[: text.rindex('"LOST"')])
    assert main(["summary", "--json", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cut_files"] == [str(path)]
    assert report["ranks"]["0"]["operations"] == 1


def test_a_merged_trace_has_a_row_for_each_rank_and_arrows(tmp_path):
    path = two_ranks(tmp_path)
    command = [sys.executable, "-m", "horovod.timeline", "merge", str(path), "-o", str(tmp_path / "all.json")]
    subprocess.run(command, check=True, timeout=60)
    events = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    traces = [read(name) for name in find([str(path)])]
    assert events == merge(traces)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name" if "name" in e else "ph"] == "process_name"}
    assert names == {0: "ranks", 1: NAME, 2: "b"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert rows[1, 0] == rows[2, 0] == "rank 0"
    assert rows[1, 1] == "rank 1"
    assert rows[0, 4] == "rank 1 schedules"
    begins = [(e["ts"], e["tid"]) for e in events if e["ph"] == "B" and e["name"] == "NEGOTIATE_ALLREDUCE"]
    assert begins == [(100, 0), (400, 1)]
    clocks = {e["args"]["rank"]: e["args"] for e in events if e.get("name") == "clock_sync"}
    assert clocks[1] == {"rank": 1, "host": "host1", "offset_ns": -2_000_000, "error_ns": 1_000}
    arrows = [(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"]
    # From rank 0's own request and from rank 1's, which came last, to rank 0; rank 1's own.
    assert arrows[:6] == [(1, 0, 100), (1, 0, 430), (1, 1, 400), (1, 0, 430), (1, 1, 400), (1, 1, 435)]
    assert len(arrows) == 12
    assert len({e["id"] for e in events if e["ph"] == "s"}) == 6
    assert not any(e["ph"] in "sf" for e in merge(traces, flows=False))
    depth: dict[tuple[int, int], int] = {}
    for e in events:
        if e["ph"] in "BE":
            depth[e["pid"], e["tid"]] = depth.get((e["pid"], e["tid"]), 0) + (1 if e["ph"] == "B" else -1)
    assert set(depth.values()) == {0}


def changed(number=None, **more):
    """Return a rank's events with one or all of them changed."""
    maker = Maker(0, 2)
    maker.scheduled("a", 1, ready=1, start=2, end=3)
    events = maker.events
    for index in range(len(events)) if number is None else [number]:
        events[index] = {**events[index], **more}
    return events


HOSTILE = {
    "a huge job": changed(1, args={"rank": 0, "size": 10**12, "host": "h", "start_ns": 0}),
    "a rank that is none": changed(1, args={"rank": 2, "size": 2, "host": "h", "start_ns": 0}),
    "a rank in words": changed(1, args={"rank": "0", "size": 2, "host": "h", "start_ns": 0}),
    "a rank without a host": changed(1, args={"rank": 0, "size": 2, "start_ns": 0}),
    "a time in words": changed(ts="soon"),
    "no time": changed(-1, ts=None),
    "a time of a number that is too large": changed(ts=1e300),
    "a list in the place of a tensor": changed(pid=[1]),
    "a row in words": changed(tid="x"),
    "arguments that are none": changed(args=[]),
    "a name that is none": changed(name={"a": 1}),
    "no name": changed(-4, ph="B", name=None),
    "a number in words": changed(-4, args={"number": "x"}),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", HOSTILE)
def test_malicious_events(tmp_path, capsys, kind):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(HOSTILE[kind]))
    assert main(["merge", str(path)]) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {path}: not a rank's timeline: ")
    assert output.out == ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1e999]", "not a "),
        ("[NaN]", "not a "),
        ("[" * 100000, "not a "),
        ('[{"a":' * 100000, "not a "),
        ("[1]", "not a trace"),
        ("[\n1e999\n]", "not a "),
        (None, "not a "),
        ("\x00\xff garbage", "not a trace"),
        ("{}", "not a trace: it must be a list of events"),
        ('[{"ph":"B","pid":1,"ts":1,"name":"x"}]', "not a rank's timeline: it has no rank"),
    ],
)
def test_invalid_or_malicious_texts(tmp_path, capsys, text, message):
    path = tmp_path / "t.json"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    assert main(["summary", str(path)]) == 1
    output = capsys.readouterr().err
    assert output.startswith(f"error: {path}")
    assert message in output


def summary_of(folder, *makers):
    """Return the summary of these ranks' files; the files are written first."""
    paths = [maker.write(folder / f"t.rank{maker.rank}.json") for maker in makers]
    return summarize([read(str(path)) for path in paths])


@pytest.mark.parametrize(("ready", "last"), [(139, 0), (140, 0), (141, 1)])
def test_waiting_times_must_exceed_both_clock_errors(tmp_path, ready, last):
    zero, one = Maker(0, 2), Maker(1, 2, clock=(0, 20_000))
    zero.scheduled("x", 1, ready=100, start=400, end=500)
    one.scheduled("x", 1, ready=ready, start=400, end=500)
    summary = summary_of(tmp_path, zero, one)
    assert summary.ranks[1].last == last
    assert summary.ranks[0].waited == (41 if last else 0)


def test_the_last_rank_and_waiting_times_are_reported(tmp_path):
    makers = [Maker(rank, 3) for rank in range(3)]
    for number in range(4):
        at = 10_000 * number
        for maker, late in zip(makers, (0, 3000, 1000), strict=True):
            maker.scheduled("x", number + 1, ready=at + late * (number > 0), start=at + 4000, end=at + 5000)
    summary = summary_of(tmp_path, *makers)
    # In three of four operations: 3 ms for rank 0 and 2 ms for rank 2.
    assert "Rank 1 came last in 75% of 4 operations; the others waited 1.88 ms for one on average." in render(summary)
    alone = summary_of(tmp_path, makers[1])
    assert "Rank 1 came last" not in render(alone)


def test_tables_and_json_have_the_numbers_of_each_rank(tmp_path):
    zero, one = Maker(0, 2), Maker(1, 2)
    zero.negotiated("x", 1, ready=100.1234, agreed=420, start=430, end=500, process_set=2)
    one.negotiated("x", 1, ready=400, agreed=425, start=435, end=505, process_set=2)
    summary = summary_of(tmp_path, zero, one)
    head, *rows = [line for line in render(summary).splitlines() if line][1:]
    assert [head, *rows[:2]] == [
        "rank  operations  came last  waited     for  negotiated  queued  packed  on the wire",
        "   0           1          0   0.300  rank 1       0.020   0.010   0.001        0.069",
        "   1           1          1   0.000       -       0.025   0.010   0.001        0.069",
    ]
    assert rows[2:5] == [
        "tensor     rank  operations  came last  waited     for  negotiated  queued  packed  on the wire",
        "x (set 2)  0              1          0   0.300  rank 1       0.020   0.010   0.001        0.069",
        "x (set 2)  1              1          1   0.000       -       0.025   0.010   0.001        0.069",
    ]
    assert rows[5] == "Rank 1 came last in 100% of 1 operations; the others waited 0.30 ms for one on average."
    figures = {
        "operations": 1, "waited_us": 299.877, "waited_for_us": {"1": 299}, "last": 0, "negotiated_us": 20.0,
        "queued_us": 10.0, "packed_us": 1.0, "carried_us": 69.0,
    }  # fmt: skip
    report = summary.as_json()
    assert report["ranks"]["0"] == figures
    assert [(tensor["name"], tensor["process_set"]) for tensor in report["tensors"]] == [("x", 2)]
    assert report["tensors"][0]["ranks"]["0"] == figures


def test_content_of_a_merged_trace(tmp_path):
    zero, one = Maker(0, 2), Maker(1, 2, clock=(5000, 300))
    one.clock(100, 7000, 200)
    zero.negotiated("x", 1, ready=100.12345, agreed=420, start=430, end=500, process_set=2)
    zero.scheduled("y", 2, ready=600, start=700, end=800)
    summary_of(tmp_path, zero, one)
    events = merge([read(str(tmp_path / f"t.rank{rank}.json")) for rank in (0, 1)])
    about = [e["args"] for e in events if e.get("name") == "clock_sync" and e["ph"] == "M"]
    assert about == [
        {"rank": 0, "host": "host0", "offset_ns": 0, "error_ns": 0},
        {"rank": 1, "host": "host1", "offset_ns": 7000, "error_ns": 200},
    ]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert rows == {
        (0, 0): "rank 0", (0, 1): "rank 0 schedules", (0, 2): "rank 0 steps",
        (0, 3): "rank 1", (0, 4): "rank 1 schedules", (0, 5): "rank 1 steps",
        (1, 0): "rank 0", (2, 0): "rank 0",
    }  # fmt: skip
    tensors = [e["args"] for e in events if e.get("name") == "process_name" and e["pid"]]
    assert tensors == [{"name": "x", "process_set": 2}, {"name": "y"}]
    assert 100.123 in [e.get("ts") for e in events]
