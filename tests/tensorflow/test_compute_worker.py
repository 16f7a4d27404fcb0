"""A process of the compute side, and what becomes of it when its data worker fails."""

import os
import stat

import pytest

pytest.importorskip("tensorflow")


def fails(path, words):
    """The error of a rank 0 whose data worker is the program ``words``."""
    import os
    import sys

    from horovod.tensorflow.data import compute_worker

    os.environ["HOROVOD_GLOO_IFACE"] = " lo , "
    python, sys.executable = sys.executable, words
    try:
        compute_worker.main(1, "compute", path, 60)
    except compute_worker.DataWorkerFailed as error:
        return str(error), error.code, os.path.exists(path)
    finally:
        del os.environ["HOROVOD_GLOO_IFACE"]
        sys.executable = python


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    os.chmod(path, path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("exit 7", "data worker 0 ended with exit code 7, its output says why", 7),
        ("kill -9 $$", "data worker 0 was ended by signals 11 times, the last was 9", 137),
    ],
)
def test_a_data_worker_that_fails_ends_the_compute_side(tf_pool, tmp_path, text, said, code):
    path = str(tmp_path / "compute.json")
    assert tf_pool(1).run(fails, path, program(tmp_path / "worker", text)) == [(said, code, False)]
