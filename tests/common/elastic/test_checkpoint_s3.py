"""Checkpoints on S3."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("fsspec")

from horovod.common.elastic import Checkpoint
from tests import s3
from tests.common.elastic.places import THREADS_AT_END, ended
from tests.common.elastic.saving import saved


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The URL of a server with a bucket named `training`."""
    with s3.server(tmp_path_factory.mktemp("moto"), "training") as url:
        yield url


def variables(endpoint):
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1"}
    return {**given, "AWS_ENDPOINT_URL": endpoint}


@pytest.mark.heavy
def test_on_s3(endpoint, capfd):
    given = {"storage_options": s3.options(endpoint)}
    checkpoint = saved("s3://training/a/run", 1, 2, 3, 4, keep=2, **given)
    assert checkpoint.steps() == [4, 3]
    assert Checkpoint("s3://training/a/run", **given).load() == (4, {"step": 4})
    saved("s3://training/a/run", 2, **given)
    assert "they are in s3://training/a/run/earlier-1 now" in capfd.readouterr().err
    assert checkpoint.steps() == [2]
    assert Checkpoint("s3://training/a/run/earlier-1", **given).steps() == [4, 3]
    if THREADS_AT_END:
        ended("s3://training/ended", **variables(endpoint))
        assert Checkpoint("s3://training/ended", **given).steps() == [1]
    with Checkpoint("s3://elsewhere/run", **given) as lost:
        assert lost.load() is None
        lost.save(1, None)
        with pytest.raises(OSError, match="bucket"):
            lost.wait()


WRITER = """
import os, sys
from horovod.common.elastic import Checkpoint

checkpoint = Checkpoint("s3://training/killed", dump=lambda value, file: file.write(value))
checkpoint.save(1, b"x" * 1000)
checkpoint.wait()
print("one", flush=True)
step = 2
while True:
    checkpoint.save(step, os.urandom(12 << 20))
    checkpoint.wait()
    step += 1
"""


@pytest.mark.heavy
def test_who_is_killed_while_sending_to_s3_leaves_whole_ones_only(endpoint, tmp_path):
    env = {**os.environ, **variables(endpoint), "TMPDIR": str(tmp_path)}
    for seconds in (0.3, 1.1):
        with subprocess.Popen([sys.executable, "-c", WRITER], env=env, stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"one\n"
            time.sleep(seconds)
            child.send_signal(signal.SIGKILL)
        reader = Checkpoint("s3://training/killed", storage_options=s3.options(endpoint), load=lambda file: file.read())
        assert reader.load() is not None
        assert reader.torn == []
        for step in reader.steps():
            assert len(reader.load(step).value) in (1000, 12 << 20)
    assert os.listdir(tmp_path) == [], "what a killed process was sending is gone with it"
