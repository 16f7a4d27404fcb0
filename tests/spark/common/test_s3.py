"""A store on a moto S3 server, written by Spark's tasks and read by ranks in separate processes."""

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("s3fs")
pytest.importorskip("torch")

import torch

from horovod.spark.common.backend import LocalBackend
from horovod.spark.common.store import FilesystemStore, Store, StoreNotWritableError
from horovod.spark.torch import TorchEstimator, TorchModel
from tests import s3
from tests.spark import digits

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The URL of a server with a bucket named `training`."""
    with s3.server(tmp_path_factory.mktemp("moto"), "training") as url:
        yield url


def test_digits_are_learnt_from_s3(session, endpoint, tmp_path):
    store = Store.create("s3://training/store", storage_options=s3.options(endpoint))
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
    store = Store.create("s3://elsewhere/store", storage_options=s3.options(endpoint))
    with pytest.raises(StoreNotWritableError, match=r"s3://elsewhere/store/.* cannot be written"):
        store.check_writable()
