"""Effects of TorchEstimator's params, on Parquet, with a single rank in this process; without Spark."""

import copy
import json

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("numpy")

import numpy as np
import torch

from horovod.spark.common import prepare
from horovod.spark.common.columns import Column
from horovod.spark.common.store import LocalStore, StoreNotWritableError
from horovod.spark.torch import TorchEstimator
from horovod.spark.torch.datamodule import MapIterable, NVTabularDataModule, PetastormDataModule
from tests.spark.backends import InThisProcess
from tests.spark.common.tables import write_sums

SEEN: list = []
"""Records of this module's classes and functions, which are pickled by name and so run in this process."""


@pytest.fixture(autouse=True)
def clear_seen():
    SEEN.clear()


def remember(epoch, figures):
    SEEN.append((epoch, figures))


class Counting(torch.optim.SGD):
    def step(self, closure=None):
        SEEN.append("step")
        return super().step(closure)


class Watching(PetastormDataModule):
    def train_data(self):
        return MapIterable(super().train_data(), 1, lambda batch: SEEN.append(batch["id"].tolist()) or batch)


def estimator(tmp_path, columns=None, seed=1, model=None, optimizer=None, **options):
    """Return an estimator that learns sum = x0 + x1 + x2 + x3 of scaled rows."""
    store = LocalStore(tmp_path / "store")
    if not store.exists(store.get_train_data_path()):
        write_sums(tmp_path / "store", **(columns or {}))
    torch.manual_seed(seed)
    model = model or torch.nn.Linear(4, 1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    params = {"model": model, "optimizer": optimizer, "loss": torch.nn.MSELoss(), "verbose": 0, "epochs": 4, **options}
    return TorchEstimator(
        store=store, backend=InThisProcess(), **{"feature_cols": ["z"], "label_cols": ["sum"], **params}
    )


def test_estimators_train_validate_and_store_the_model(tmp_path):
    fitter = estimator(
        tmp_path, validation=0.1, metrics=[torch.nn.functional.l1_loss], callbacks=[remember],
        random_seed=3, batch_size=8, run_id="r", epochs=6,
    )  # fmt: skip
    before = fitter.getModel().weight.clone()
    model = fitter.fit_on_parquet()
    history = model.getHistory()
    assert set(history) == {"loss", "l1_loss", "val_loss", "val_l1_loss"}
    assert history["loss"][-1] < history["loss"][0] / 10
    assert history["val_loss"][-1] < 0.01
    assert [epoch for epoch, _ in SEEN] == list(range(6))
    assert SEEN[2][1] == {name: values[2] for name, values in history.items()}
    assert model.getModel().weight.detach().numpy() == pytest.approx(np.ones((1, 4)), abs=0.1)
    assert (fitter.getModel().weight == before).all(), "the estimator's own model is left alone"
    # The returned optimizer refers to the returned model's parameters.
    assert model.getOptimizer().param_groups[0]["params"][0] is model.getModel().weight
    kept = torch.load(tmp_path / "store/runs/r/checkpoint", weights_only=True)
    assert (kept["model"]["weight"] == model.getModel().weight).all()
    assert kept["epoch"] == 5
    assert json.loads((tmp_path / "store/runs/r/logs/history.json").read_text()) == history
    again = estimator(tmp_path, run_id="r", epochs=1, random_seed=3, batch_size=8).fit_on_parquet()
    assert again.getHistory()["loss"][0] < history["loss"][-1] * 1.5, "a run that is there goes on"
    other = estimator(tmp_path, run_id="other", epochs=1, random_seed=3, batch_size=8).fit_on_parquet()
    assert other.getHistory()["loss"][0] == pytest.approx(history["loss"][0])


def test_without_runs_nothing_is_kept(tmp_path):
    fitter = estimator(tmp_path, epochs=1)
    fitter.getStore()._save_runs = False
    fitter.fit_on_parquet()
    assert not (tmp_path / "store/runs").exists()


def test_runs_that_cannot_be_stored_are_reported_before_training(tmp_path):
    (tmp_path / "file").write_text("no folder")
    model = torch.nn.Linear(4, 1)
    fitter = estimator(tmp_path, model=model, optimizer=Counting(model.parameters(), 0.1))
    fitter.setStore(LocalStore(tmp_path / "store", runs_path=f"{tmp_path}/file/runs"))
    with pytest.raises(StoreNotWritableError, match=r"file/runs\S* cannot be written: FileExistsError"):
        fitter.fit_on_parquet()
    assert SEEN == []


@pytest.mark.parametrize(("passes", "steps"), [(3, [2, 2]), (5, [1, 1]), (2, [2, 2]), (1, [4, 4])])
def test_an_epoch_ends_with_a_step_for_any_number_of_passes(tmp_path, passes, steps):
    model = torch.nn.Linear(4, 1)
    fitter = estimator(tmp_path, model=model, optimizer=Counting(model.parameters(), 0.01), batch_size=15, epochs=2)
    fitter.setBackwardPassesPerStep(passes).setCallbacks([remember]).fit_on_parquet()
    ends = [place for place, one in enumerate(SEEN) if one != "step"]
    assert [ends[0], ends[1] - ends[0] - 1] == steps


def test_a_step_of_fewer_passes_has_the_gradients_of_all_of_them(tmp_path):
    """With one step in an epoch: the step uses the sum of the batches' gradients."""
    fitter = estimator(tmp_path, batch_size=20, epochs=1, shuffle=False, backward_passes_per_step=7)
    before = copy.deepcopy(fitter.getModel())
    after = fitter.fit_on_parquet().getModel()
    z = torch.tensor(np.random.default_rng(0).normal(size=(60, 4)).astype("float32"))
    loss = sum(torch.nn.MSELoss()(before(rows)[:, 0], rows.sum(1)) for rows in z.split(20))
    loss.backward()
    assert after.weight.detach().numpy() == pytest.approx((before.weight - 0.1 * before.weight.grad).detach().numpy())


def test_lost_rows_are_detected(tmp_path, monkeypatch):
    fitter = estimator(tmp_path)
    store = fitter.getStore()
    columns = (Column("z", "list", "float32", 1, (4,)), Column("sum", "number", "float64", 0, ()))
    files = tuple(store.parquet_files(store.get_train_data_path()))
    written = prepare.WrittenData(7, columns, files, (), 61)
    monkeypatch.setattr(prepare, "columns_of", lambda *args: columns)
    monkeypatch.setattr(prepare, "write", lambda *args: written)
    with pytest.raises(RuntimeError, match=r"_train_data.7 must have the 61 rows that were written, got 60"):
        fitter.fit("a DataFrame")


def test_epochs_may_have_fewer_or_more_steps_than_rows(tmp_path):
    fitter = estimator(tmp_path, feature_cols=["z", "id"], data_module=Watching, batch_size=25, epochs=2, shuffle=False)
    fitter.setModel(Second()).setReaderPoolType("dummy")
    fitter.setOptimizer(torch.optim.SGD(fitter.getModel().parameters(), 0.01))
    fitter.setTrainStepsPerEpoch(2).fit_on_parquet()
    assert [len(one) for one in SEEN] == [25, 25, 10, 25]
    assert SEEN[3] == SEEN[0] == list(range(25))


class Second(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, z, ids):
        assert ids.dtype == torch.int64
        return self.inner(z)


def test_rows_with_weight_0_are_ignored(tmp_path):
    """Rows with a wrong label have weight 0."""
    wrong = np.random.default_rng(0).normal(size=(60, 4)).astype("float32").sum(1)
    weight = np.arange(60) % 2 * 1.0
    columns = {"label": np.where(weight > 0, wrong, 1000.0), "weight": weight}
    fitter = estimator(
        tmp_path, columns=columns, label_cols=["label"], sample_weight_col="weight", epochs=12, batch_size=8
    )
    model = fitter.fit_on_parquet()
    assert model.getModel().weight.detach().numpy() == pytest.approx(np.ones((1, 4)), abs=0.1)


class Square(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, z):
        assert z.shape[1:] == (2, 2)
        assert z.dtype == torch.float32
        return self.inner(z.flatten(1))


def double(frame):
    frame["twice"] = 2 * frame["sum"]
    return frame


def own_step(model, optimizer, transform_outputs, loss_fns, inputs, labels, sample_weights):
    SEEN.append(len(inputs[0]))
    outputs = model(*inputs)
    loss = loss_fns[0](outputs, labels[0].reshape(-1, 1))
    loss.backward()
    optimizer.step()
    return outputs, loss


def test_shapes_transformations_and_a_custom_step(tmp_path):
    square = Square()
    fitter = estimator(
        tmp_path, model=square, optimizer=torch.optim.SGD(square.parameters(), 0.1), input_shapes=[[-1, 2, 2]],
        transformation_fn=double, train_minibatch_fn=own_step, batch_size=20, epochs=30, inmemory_cache_all=True,
    )  # fmt: skip
    model = fitter.setLabelCols(["twice"]).setLabelShapes([[1]]).fit_on_parquet()
    assert SEEN == [20] * 3 * 30
    assert model.getModel().inner.weight.detach().numpy() == pytest.approx(2 * np.ones((1, 4)), abs=0.1)
    fitter.setTransformationRemovedFields(["twice"]).setEpochs(1)
    with pytest.raises(
        ValueError, match=r"label_cols must name columns that transformation_fn returns, 'id', 'x'.*, got 'twice'"
    ):
        fitter.fit_on_parquet()


def test_two_labels_have_losses_weights_and_metrics_of_their_own(tmp_path):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)

        def forward(self, z):
            return self.first(z), self.second(z)

    def accuracy(output, label):
        assert label.dtype == torch.int64
        return (output.argmax(1) == label).float().mean()

    both = Both()
    fitter = estimator(
        tmp_path, model=both, optimizer=torch.optim.SGD(both.parameters(), 0.1), label_cols=["sum", "y"],
        loss=[torch.nn.MSELoss(), torch.nn.CrossEntropyLoss()], loss_weights=[1.0, 0.0],
        metrics=[[torch.nn.functional.l1_loss], [accuracy]],
    )  # fmt: skip
    model = fitter.fit_on_parquet()
    assert set(model.getHistory()) == {"loss", "sum_l1_loss", "y_accuracy"}
    assert (model.getModel().second.weight == both.second.weight).all(), "a loss of weight 0 moves nothing"
    assert model.getMetadata()["outputs"] == [[[1], "float32"], [[2], "float32"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": None}, "store must be a Store, .*, got None"),
        ({"feature_cols": None}, "feature_cols must be given"),
        ({"model": "resnet"}, "model must be a torch.nn.Module, got 'resnet'"),
        ({"optimizer": "sgd"}, "optimizer must be a torch.optim.Optimizer of the model's parameters, got 'sgd'"),
        ({"loss_constructors": torch.nn.MSELoss}, "exactly one of loss and loss_constructors must be given, got both"),
        ({"loss": None}, "exactly one of loss and loss_constructors must be given, got neither"),
        (
            {"train_minibatch_fn": print, "backward_passes_per_step": 2},
            "backward_passes_per_step must be 1 with a train",
        ),
        ({"loss": []}, r"loss must be a function of an output and its label, .*, got \[\]"),
        ({"loss_weights": [1, 2]}, "loss_weights must have one number for each of 1 label_cols, got 2"),
        ({"input_shapes": [[-1, 4], [-1]]}, "input_shapes must be one shape for each of 1 feature_cols"),
        (
            {"input_shapes": [[-1, 5]]},
            r"input_shapes: the shape of feature 'z' must fit its rows of shape \[4\], got \[-1, 5\]",
        ),
        ({"label_shapes": [[3]]}, r"label_shapes: the shape of label 'sum' must fit its rows of shape \[\], got \[3\]"),
        ({"num_proc": 3}, "num_proc and backend are both given"),
        ({"data_module": 3}, "data_module must be a subclass of horovod.spark.common.datamodule.DataModule, got 3"),
        ({"metrics": [3]}, r"metrics must be functions of an output and its label, got \[3\]"),
        (
            {"data_module": NVTabularDataModule},
            "NVTabular, which needs a GPU of NVIDIA, CUDA and the packages nvtabular",
        ),
    ],
)
def test_mismatches_are_named(tmp_path, options, message):
    fitter = estimator(tmp_path, epochs=1)
    for name, value in options.items():
        getattr(fitter, f"set{fitter._rows[name].camel}")(value)
    with pytest.raises((ValueError, ImportError), match=message):
        fitter.fit_on_parquet()


def test_an_optimizer_of_another_model_and_a_checkpoint_of_another_are_refused(tmp_path):
    other = torch.nn.Linear(4, 1)
    with pytest.raises(ValueError, match="optimizer must have parameters of the model, got a SGD"):
        estimator(tmp_path, optimizer=torch.optim.SGD(other.parameters(), 0.1)).fit_on_parquet()
    path = tmp_path / "store/runs/r/checkpoint"
    path.parent.mkdir(parents=True)
    torch.save({"model": torch.nn.Linear(3, 1).state_dict(), "optimizer": None, "epoch": 0}, path)
    with pytest.raises(ValueError, match="runs/r/checkpoint is the state of another model"):
        estimator(tmp_path, run_id="r").fit_on_parquet()
    torch.save(other, path)
    with pytest.raises(ValueError, match="must be the state of a model that weights_only=True can load"):
        estimator(tmp_path, run_id="r").fit_on_parquet()
