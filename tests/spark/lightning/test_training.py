"""Lightning's TorchEstimator on Parquet, with a single rank in this process; without Spark."""

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")
pytest.importorskip("numpy")

import lightning.pytorch as pl
import numpy as np
import torch

from horovod.spark.common.store import LocalStore
from horovod.spark.lightning import TorchEstimator, TorchModel
from horovod.spark.torch import TorchEstimator as Plain
from tests.spark.backends import InThisProcess
from tests.spark.common.tables import write_sums

SEEN: list = []


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, z):
        return self.inner(z)

    def training_step(self, batch, number):
        assert batch["z"].shape[1:] == (4,)
        assert batch["sum"].dtype == torch.float32
        loss = torch.nn.functional.mse_loss(self(batch["z"])[:, 0], batch["sum"])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch["z"])[:, 0], batch["sum"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Noting(pl.callbacks.Callback):
    def on_train_start(self, trainer, module):
        SEEN.append((type(trainer.strategy).__name__, trainer.world_size, trainer.optimizers[0].__class__.__name__))


def params(tmp_path, **options):
    store = LocalStore(tmp_path / "store")
    write_sums(tmp_path / "store")
    torch.manual_seed(1)
    return {
        "store": store, "backend": InThisProcess(), "feature_cols": ["z"], "label_cols": ["sum"], "verbose": 0,
        "epochs": 4, "random_seed": 3, "batch_size": 8, "validation": 0.5, **options,
    }  # fmt: skip


def test_the_lightning_estimator_trains_like_the_pytorch_one(tmp_path):
    SEEN.clear()
    common = params(tmp_path)
    model = Line()
    plain = Plain(
        model=model.inner, optimizer=torch.optim.SGD(model.inner.parameters(), 0.1), loss=torch.nn.MSELoss(), **common
    )
    expected = plain.fit_on_parquet().getHistory()
    pytorch = TorchEstimator(model=model, callbacks=[Noting()], run_id="r", **common).fit_on_parquet()
    assert isinstance(pytorch, TorchModel)
    assert SEEN == [("HorovodStrategy", 1, "SGD")]
    for name in ("loss", "val_loss"):
        assert pytorch.getHistory()[name] == pytest.approx(expected[name], rel=1e-4)
    assert pytorch.getModel().inner.weight.detach().numpy() == pytest.approx(np.ones((1, 4)), abs=0.1)
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 1)
    wrapped = TorchEstimator(
        model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=torch.nn.MSELoss(),
        metrics=[torch.nn.functional.l1_loss], **common,
    ).fit_on_parquet()  # fmt: skip
    assert wrapped.getHistory()["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert set(wrapped.getHistory()) == {"loss", "val_loss", "l1_loss", "val_l1_loss"}
    again = TorchEstimator(model=Line(), run_id="r", **common).fit_on_parquet()
    assert again.getHistory()["loss"][0] < expected["loss"][0] / 10, "a run that is there goes on"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "net"}, "model must be a LightningModule, or a torch.nn.Module with optimizer and loss, got 'net'"),
        (
            {"model": torch.nn.Linear(4, 1)},
            "optimizer must be a torch.optim.Optimizer of the model's parameters, got None",
        ),
        ({"trainer_args": {"strategy": "ddp"}}, "trainer_args must not have 'strategy', which the estimator sets"),
        (
            {"trainer_args": {"accumulate_grad_batches": 2}},
            "trainer_args must not have 'accumulate_grad_batches', which .*, by its param backward_passes_per_step",
        ),
        ({"train_minibatch_fn": print}, "define training_step of the LightningModule instead"),
    ],
)
def test_mismatches_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TorchEstimator(**{"model": Line(), **params(tmp_path), **options}).fit_on_parquet()


class Asking(pl.callbacks.Callback):
    def on_train_start(self, trainer, module):
        SEEN.append((trainer.num_sanity_val_steps, trainer.log_every_n_steps, type(trainer.profiler).__name__))


def test_trainer_arguments_override_params(tmp_path):
    SEEN.clear()
    arguments = {"num_sanity_val_steps": 1, "log_every_n_steps": 3, "profiler": "simple"}
    common = {**params(tmp_path), "epochs": 1, "callbacks": [Asking()]}
    TorchEstimator(model=Line(), trainer_args=arguments, **common).fit_on_parquet()
    TorchEstimator(model=Line(), log_every_n_steps=7, **common).fit_on_parquet()
    assert SEEN == [(1, 3, "SimpleProfiler"), (0, 7, "PassThroughProfiler")]
