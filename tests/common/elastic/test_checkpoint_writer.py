"""Checkpoint writes in progress when a program ends."""

import pytest

pytest.importorskip("fsspec")

from horovod.common.elastic import Checkpoint
from tests.common.elastic.places import THREADS_AT_END, run_to_end


def test_the_last_checkpoint_is_written_without_close(tmp_path):
    places = {"a": f"looking://{tmp_path}/a", "b": f"looking://{tmp_path}/b"} if THREADS_AT_END else {}
    places["c"] = str(tmp_path / "c")
    run_to_end(*places.values())
    for name in places:
        assert Checkpoint(tmp_path / name, load=lambda file: file.read()).load() == (1, b"last")
