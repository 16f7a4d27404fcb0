"""Checkpoints on S3."""

import pytest

pytest.importorskip("fsspec")

from horovod.common.elastic import Checkpoint
from tests import s3
from tests.common.elastic.places import THREADS_AT_END, run_to_end
from tests.common.elastic.saving import saved


@pytest.fixture
def endpoint(tmp_path):
    """The URL of a server with a bucket named `training`."""
    with s3.server(tmp_path, "training") as url:
        yield url


@pytest.mark.heavy
def test_checkpoints_on_s3(endpoint, capfd):
    options = {"storage_options": s3.options(endpoint)}
    checkpoint = saved("s3://training/a/run", 1, 2, 3, 4, keep=2, **options)
    assert checkpoint.steps() == [4, 3]
    assert Checkpoint("s3://training/a/run", **options).load() == (4, {"step": 4})
    saved("s3://training/a/run", 2, **options)
    assert "they are in s3://training/a/run/earlier-1 now" in capfd.readouterr().err
    assert checkpoint.steps() == [2]
    assert Checkpoint("s3://training/a/run/earlier-1", **options).steps() == [4, 3]
    if THREADS_AT_END:
        account = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1"}
        run_to_end("s3://training/ended", AWS_ENDPOINT_URL=endpoint, **account)
        assert Checkpoint("s3://training/ended", **options).steps() == [1]
    with Checkpoint("s3://elsewhere/run", **options) as lost:
        assert lost.load() is None
        lost.save(1, None)
        with pytest.raises(OSError, match="bucket"):
            lost.wait()
