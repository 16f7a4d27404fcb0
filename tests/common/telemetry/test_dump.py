"""hvd.dump(): this rank's recent operations, written to a file."""

import json
import os
from pathlib import Path

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.frontends import named
from horovod.common.objects import allgather_object
from tests.ranks import on_ranks


def test_ranks_write_their_operations(pool, tmp_path):
    folder = tmp_path / "made" / "here"

    def work():
        hvd = HorovodBasics("tests")
        allgather_object(hvd.rank(), name="mine", frontend=named("tests"))
        path = hvd.dump(folder)
        blocked = os.path.join(path, "x")
        with pytest.raises(OSError, match=r"cannot create or open the folder .*jsonl/x: Not a directory"):
            hvd.dump(blocked)
        child = os.fork()
        if child == 0:
            try:
                hvd.dump(folder / "child")
            except Exception as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        return path, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for rank, (path, code) in enumerate(pool(2).run(work)):
        assert path == str(folder / f"recorder.rank{rank}.jsonl")
        head, *entries = [json.loads(line) for line in Path(path).read_text().splitlines()]
        assert (head["horovod"], head["rank"], head["size"]) == ("recorder", rank, 2)
        assert any("mine" in entry["name"] and entry["what"] == "carried out" for entry in entries)
        assert code == 0
    assert not (folder / "child").exists()


@on_ranks(1, HOROVOD_RECORDER_ENTRIES="0")
def test_without_a_recorder_or_a_job(tmp_path):
    hvd = HorovodBasics("tests")
    with pytest.raises(ValueError, match=r"HOROVOD_RECORDER_ENTRIES is 0"):
        hvd.dump(tmp_path)
    hvd.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.dump(tmp_path)
    assert os.listdir(tmp_path) == []
    hvd.init()
