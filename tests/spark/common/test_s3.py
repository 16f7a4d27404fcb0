"""A store on S3, here moto's server: written by Spark's tasks, read by ranks in processes of their own."""

import importlib.util
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("s3fs")
pytest.importorskip("torch")

import torch

from horovod.spark.common.backend import LocalBackend
from horovod.spark.common.store import FilesystemStore, Store, StoreNotWritableError
from horovod.spark.torch import TorchEstimator, TorchModel
from tests.spark import digits

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The URL of a server with a bucket named `training`."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("moto's server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=file, stderr=file
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        import s3fs

        s3fs.S3FileSystem(**options(url)).mkdir("training")
        yield url
    finally:
        server.terminate()
        server.wait(20)


def options(url):
    return {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": url, "region_name": "eu-west-1"}}


def test_digits_are_learnt_from_s3(session, endpoint, tmp_path):
    store = Store.create("s3://training/store", storage_options=options(endpoint))
    assert type(store) is FilesystemStore
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    estimator = TorchEstimator(
        model=model, optimizer=torch.optim.Adam(model.parameters(), 5e-3), loss=torch.nn.CrossEntropyLoss(),
        store=store, backend=LocalBackend(2), feature_cols=["features"], label_cols=["label"], epochs=6, run_id="r",
        validation=0.2, partitions_per_process=2,
    )  # fmt: skip
    frame = digits.frame(session)
    fitted = estimator.fit(frame)
    assert digits.accuracy(fitted.transform(frame).collect()) > 0.94
    assert store.exists(store.get_checkpoint_path("r"))
    assert sorted(name.rpartition("/")[2] for name in store.fs.ls("training/store")) == ["runs"]
    fitted.save(f"{tmp_path}/model")
    assert TorchModel.load(f"{tmp_path}/model").getRunId() == "r"


def test_a_bucket_that_is_not_there_is_named(endpoint):
    store = Store.create("s3://elsewhere/store", storage_options=options(endpoint))
    with pytest.raises(StoreNotWritableError, match=r"s3://elsewhere/store/.* cannot be written"):
        store.check_writable()
