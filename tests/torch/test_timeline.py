"""Timelines of real jobs: started by the program, the environment or horovodrun; writers that are killed."""

import json
import time

import pytest
import torch

import horovod.torch as hvd
from horovod.timeline.merge import base_of, by_number, operations, to_common
from horovod.timeline.read import find, read
from horovod.timeline.summary import summarize
from tests.ranks import on_ranks
from tests.runner.launching import python, run_job

NAME = 'a "name" of\ntwo lines, 重み'


def operations_of_all(path):
    """Return the operations that all ranks recorded, by rank."""
    traces = [read(name) for name in find([str(path)])]
    base = base_of(traces)
    return by_number([operations(trace, to_common(trace, base)) for trace in traces])


def test_the_program_starts_and_stops_it(pool, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"

    def work():
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
    names = [next(iter(ranks.values())).name for ranks in operations_of_all(first)]
    assert sorted(names) == sorted([f"allreduce.{NAME}", "grouped_allreduce.pair_1of2", "grouped_allreduce.pair_2of2"])
    text = first.read_text(encoding="utf-8")
    assert "CYCLE_START" in text
    later = operations_of_all(second)
    assert {op.name for ranks in later for op in ranks.values()} == {"allgather.later"}
    assert len(later) == 20
    assert all(set(ranks) == {0, 1} for ranks in later)
    assert later[0][1].announced - later[0][0].announced > 100_000
    summary = summarize([read(name) for name in find([str(second)])])
    assert summary.ranks[0].waited_for[1] > 100_000
    assert summary.ranks[1].last >= 1


@on_ranks(1)
def test_start_timeline_is_refused_unless_dynamic():
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        hvd.start_timeline("t.json")
    hvd.stop_timeline()


@pytest.mark.heavy
def test_rank_0_merges_the_files_on_request(tmp_path):
    path = tmp_path / "t.json"
    program = "import torch, horovod.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(3), name='x')"
    done = run_job(["-np", "2", "--timeline-filename", str(path), "--timeline-merge", *python(program)])
    assert done.code == 0, done.err
    merged = json.loads((tmp_path / "t.all.json").read_text(encoding="utf-8"))
    assert {event["tid"] for event in merged if event.get("name") == "ALLREDUCE"} == {0, 1}
