"""Timelines of real jobs: by the program, the environment, horovodrun; files that are bad; writers that are killed."""

import fcntl
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from horovod.timeline.operations import base_of, by_number, operations, to_common
from horovod.timeline.read import find, read
from horovod.timeline.summary import summarize
from tests.runner.launching import LIMIT, launcher, marked_environment, python, run_job

NAME = 'a "name" of\ntwo lines, 重み'


def together(path):
    """Each operation that all have, by rank."""
    traces = [read(name) for name in find([str(path)])]
    base = base_of(traces)
    return by_number([operations(trace, to_common(trace, base)) for trace in traces])


def test_the_program_starts_and_stops_it(pool, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"

    def work():
        import time

        import torch

        import horovod.torch as hvd

        hvd.allreduce(torch.ones(3), name="before")
        hvd.start_timeline(str(first), mark_cycles=True)
        hvd.allreduce(torch.ones(3), name=NAME)
        hvd.grouped_allreduce([torch.ones(2), torch.ones(5)], name="pair")
        hvd.start_timeline(second)
        if hvd.rank() == 1:
            time.sleep(0.2)
        for _ in range(20):
            hvd.allgather(torch.ones(2, 3), name="later")
        hvd.stop_timeline()
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="after")
        errors = []
        for path in (f"{tmp_path}/none/t.json", str(tmp_path), "/dev/full"):
            try:
                hvd.start_timeline(path)
            except OSError as error:
                errors.append(str(error))
        return errors

    errors = pool(2, HOROVOD_TIMELINE="DYNAMIC").run(work)[0]
    assert errors[0].endswith(f"{tmp_path}/none/t.json: cannot be opened for writing: No such file or directory")
    assert errors[1].endswith(f"{tmp_path}: cannot be opened for writing: Is a directory")
    assert errors[2].endswith("/dev/full: is not a regular file")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "first.json",
        "first.rank1.json",
        "second.json",
        "second.rank1.json",
    ]
    names = [next(iter(ranks.values())).name for ranks in together(first)]
    assert sorted(names) == sorted([f"allreduce.{NAME}", "grouped_allreduce.pair_1of2", "grouped_allreduce.pair_2of2"])
    text = first.read_text(encoding="utf-8")
    assert "CYCLE_START" in text
    later = together(second)
    assert {op.name for ranks in later for op in ranks.values()} == {"allgather.later"}
    assert len(later) == 20
    assert all(set(ranks) == {0, 1} for ranks in later)
    assert later[0][1].announced - later[0][0].announced > 100_000
    summary = summarize([read(name) for name in find([str(second)])])
    assert summary.ranks[0].waited_for[1] > 100_000
    assert summary.ranks[1].last >= 1


def test_it_is_refused_where_it_was_not_asked_for(pool):
    def work():
        import pytest

        import horovod.torch as hvd

        with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
            hvd.start_timeline("t.json")
        hvd.stop_timeline()

    pool(1).run(work)

    def outside():
        import pytest

        import horovod.torch as hvd

        for call in (lambda: hvd.start_timeline("t.json"), hvd.stop_timeline):
            with pytest.raises(ValueError, match="not been initialized"):
                call()

    pool(1, initialized=False).run(outside)


TRAIN = """
import os, resource, signal, sys, time, torch
import horovod.torch as hvd
hvd.init()
if 'LIMIT' in os.environ: resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ['LIMIT']),) * 2)
for step in range(1500):
    if step == 1000: time.sleep(0.5)  # some of it reaches the file
    if step == 1200 and hvd.rank() == 1 and 'KILL' in os.environ: os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(torch.ones(3), name='x')
    hvd.allreduce(torch.ones(4), name='y')
print('done')
"""


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path):
    path = tmp_path / "t.json"
    arguments = ["-np", "2", "--timeline-filename", str(path), "--timeline-mark-cycles"]
    done = run_job([*arguments, *python(TRAIN)], environment={"KILL": "1"})
    assert done.code != 0
    for name in find([str(path)]):
        json.loads(Path(name).read_text(encoding="utf-8"))
    traces = [read(name) for name in find([str(path)])]
    assert [trace.rank for trace in traces] == [0, 1]
    assert not any(trace.cut for trace in traces)
    ended = [event["args"]["why"] for event in traces[0].events if event.get("name") == "ENDED"]
    assert len(ended) == 1
    assert "rank 1" in ended[0]
    assert any(event.get("name") == "SCHEDULE" for event in traces[1].events)
    # Of rank 1 what came in its last tenth of a second may be missing.
    assert len(together(path)) > 500


def test_rank_0_merges_the_files_when_it_is_asked_to(tmp_path):
    path = tmp_path / "t.json"
    program = "import torch, horovod.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(3), name='x')"
    done = run_job(["-np", "2", "--timeline-filename", str(path), "--timeline-merge", *python(program)])
    assert done.code == 0, done.err
    merged = json.loads((tmp_path / "t.all.json").read_text(encoding="utf-8"))
    assert {event["tid"] for event in merged if event.get("name") == "ALLREDUCE"} == {0, 1}


def test_files_that_cannot_be_had_or_fill_the_disk_are_a_warning(tmp_path):
    path = tmp_path / "t.json"
    # Another job has rank 0's; the disk has room for a part of rank 1's.
    with open(path, "w") as other:
        other.write("[]")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        done = run_job(["-np", "2", *python(TRAIN)], environment={"HOROVOD_TIMELINE": str(path), "LIMIT": str(200_000)})
    assert done.code == 0, done.err
    assert done.out.count("done") == 2
    warnings = [line for line in done.err.splitlines() if "WARNING" in line]
    assert len(warnings) == 2, warnings
    assert (
        sum(f"no timeline: HOROVOD_TIMELINE is '{path}', and {path}: is being written by an" in w for w in warnings)
        == 1
    )
    assert (
        sum("t.rank1.json: cannot be written any more: File too large; the timeline ends here" in w for w in warnings)
        == 1
    )
    assert path.read_text() == "[]"
    one = read(str(tmp_path / "t.rank1.json"))
    assert not one.cut
    assert len(one.events) > 500
    assert os.path.getsize(one.path) <= 200_000


@pytest.mark.heavy  # a limited file is another test
def test_a_disk_that_is_full(tmp_path):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    mount = f"mount -t tmpfs -o size=200k none {disk}"
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*namespace, mount], capture_output=True, timeout=20).returncode != 0:
        pytest.skip("a file system cannot be mounted in a namespace here")
    job = shlex.join([*launcher(["-np", "2", "--timeline-filename", str(disk / "t.json"), *python(TRAIN)])])
    done = subprocess.run(
        [*namespace, f"{mount} && {job}; code=$?; cp {disk}/* {kept}; exit $code"],
        env=marked_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert warnings
    assert len(warnings) <= 2
    assert all("No space left on device; the timeline ends here" in line for line in warnings)
    for name in ("t.json", "t.rank1.json"):
        assert json.loads((kept / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("flag", "value", "words"), [("--timeline-steps", "9:9", "FIRST:END"), ("--timeline-last", "-1", "number")]
)
def test_what_the_launcher_does_not_understand(flag, value, words):
    done = run_job(["-np", "1", "--timeline-filename", "t.json", f"{flag}={value}", "true"])
    assert done.code == 2
    assert words in done.err
    assert flag in done.err


def test_only_some_steps(pool, tmp_path):
    def work():
        import torch

        import horovod.torch as hvd

        net = torch.nn.Linear(4, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        for _ in range(40):
            optimizer.zero_grad()
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    path = tmp_path / "t.json"
    pool(2, HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_STEPS="10:13").run(work)
    pool(2).run(lambda: None)  # the file is complete when its job has ended
    steps = [event["args"]["step"] for event in read(str(path)).events if event.get("name") == "STEP"]
    assert steps == [10, 11, 12]
    found = together(path)
    assert found
    assert len(found) % 3 == 0


def test_clocks_of_hosts_are_compared(pool, tmp_path):
    path = str(tmp_path / "t.json")

    def work():
        import time

        import torch

        import horovod.torch as hvd

        hvd.start_timeline(path)
        for _ in range(30):
            hvd.allreduce(torch.ones(3), name="x")
            time.sleep(0.01)
        hvd.stop_timeline()

    # Ranks that reach each other by TCP alone are taken for hosts of their own; this is the same clock all the same.
    pool(2, HOROVOD_TIMELINE="DYNAMIC", HOROVOD_TRANSPORT="tcp").run(work)
    zero, one = (read(name) for name in find([path]))
    assert [(reading.offset, reading.error) for reading in zero.clock] == [(0, 0)]
    assert one.clock
    assert all(0 < reading.error < 1_000_000_000 and abs(reading.offset) <= reading.error for reading in one.clock)
    assert len(together(path)) == 30
    error = summarize([zero, one]).error
    assert error
