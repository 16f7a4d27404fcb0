"""Training function that each rank of a TorchEstimator calls."""

import io
import pickle
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

import horovod.torch as hvd
from horovod.spark.common.plan import TrainingPlan, TrainingResult, own_gpu, prepare_rank
from horovod.spark.torch import losses
from horovod.spark.torch.losses import floating_dtype, outputs_of, shapes_of, split

# -- states as bytes that load without running code: only tensors and plain values -----------------------------------


def dump(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, epoch: int) -> bytes:
    """Serialize the state dicts as a dict with ``model``, ``optimizer`` and ``epoch``.

    Both ``load`` and ``torch.load(weights_only=True)`` can read it.

    Returns:
        The serialized dict.
    """
    stream = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else None, "epoch": epoch}
    torch.save(state, stream)
    return stream.getvalue()


def load(data: bytes, where: str) -> dict[str, Any]:
    """Load the state dicts that ``dump`` has serialized.

    Args:
        data: Result of ``dump``.
        where: Source of the data, for messages.

    Returns:
        The dict.

    Raises:
        ValueError: If the data are damaged, or contain objects other than tensors and plain values.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{where} must be the state of a model that weights_only=True can load: {error}") from error


def put_into(
    state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, where: str
) -> None:
    """Copy loaded state dicts into the model and optimizer. Raises ValueError if they belong to another model."""
    try:
        model.load_state_dict(state["model"])
        if optimizer is not None and state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(f"{where} is the state of another model: {error}") from error


def train(plan: TrainingPlan) -> TrainingResult | None:
    """Train on this rank. Return the TrainingResult on rank 0, and None on all other ranks."""
    hvd.init()
    try:
        prepare_rank(plan, hvd.rank())
        with plan.open_data(hvd.rank(), hvd.size()) as data:
            return _Training(plan).run(data)
    finally:
        hvd.shutdown()


class _Training:
    def __init__(self, plan: TrainingPlan) -> None:
        self.plan, self.payload = plan, pickle.loads(plan.payload)
        if plan.seed is not None:
            torch.manual_seed(plan.seed)
        self.device = own_device(plan.use_gpu)
        self.model, self.optimizer = self.payload["model"], self.payload["optimizer"]
        # Move the model before loading the optimizer's state, because the state is stored on the device of the
        # parameters.
        self.model.to(self.device)
        if plan.checkpoint is not None:
            where = plan.remote.checkpoint_path
            put_into(load(plan.checkpoint, where), self.model, self.optimizer, where)
        elif self.optimizer.state:
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            self.model.named_parameters(),
            compression=self.payload["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=plan.backward_passes_per_step,
        )
        self.losses = losses.make(
            self.payload["loss"], self.payload["loss_constructors"], plan.weight is not None, len(plan.labels)
        )
        self.dtype = floating_dtype(self.model)
        self.outputs: list[Any] = []

    def run(self, data: Any) -> TrainingResult | None:
        batches = iter(data.train_data())
        val = iter(data.val_data()) if self.plan.val is not None else None
        history: dict[str, list[float]] = defaultdict(list)
        for epoch in range(self.plan.epochs):
            figures = self._epoch(islice(batches, self.plan.steps))
            if val is not None:
                found = self._validation(islice(val, self.plan.val_steps))
                figures.update({f"val_{name}": value for name, value in found.items()})
            for name, value in figures.items():
                history[name].append(value)
            self._end_of_epoch(epoch, figures)
        if hvd.rank() != 0:
            return None
        return TrainingResult(dict(history), dump(self.model, self.optimizer, self.plan.epochs - 1), self.outputs)

    def _epoch(self, batches: Iterator[Any]) -> dict[str, float]:
        self.model.train()
        figures = _Figures()
        passes = self.plan.backward_passes_per_step
        step = self.payload["train_minibatch_fn"] or self._step
        for number, batch in enumerate(batches):
            inputs, labels, weights = split(batch, self.plan, self.payload["input_shapes"], self.dtype, self.device)
            if number % passes == 0:
                self.optimizer.zero_grad()
            # Run an optimizer step after every `passes` batches, and after the last batch of the epoch even if fewer
            # than `passes` batches have accumulated.
            self._last_pass = (number + 1) % passes == 0 or number + 1 == self.plan.steps
            outputs, loss = step(self.model, self.optimizer, losses.fitted, self.losses, inputs, labels, weights)
            self._measure(figures, outputs_of(outputs), labels, loss)
        return figures.averaged("train")

    def _step(
        self, model: Any, optimizer: Any, transform_outputs: Any, loss_fns: Any, inputs: Any, labels: Any, weights: Any
    ) -> Any:
        outputs, labels = transform_outputs(model(*inputs), labels)
        loss = losses.total(loss_fns, self.payload["loss_weights"], outputs, labels, weights)
        loss.backward()
        if self._last_pass:
            optimizer.step()
        return outputs, loss

    @torch.no_grad()
    def _validation(self, batches: Iterator[Any]) -> dict[str, float]:
        self.model.eval()
        figures = _Figures()
        for batch in batches:
            inputs, labels, weights = split(batch, self.plan, self.payload["input_shapes"], self.dtype, self.device)
            outputs = outputs_of(self.model(*inputs))
            loss = losses.total(self.losses, self.payload["loss_weights"], outputs, labels, weights)
            self._measure(figures, outputs, labels, loss)
        return figures.averaged("val")

    @torch.no_grad()
    def _measure(self, figures: "_Figures", outputs: list[Any], labels: list[Any], loss: Any) -> None:
        self.outputs = self.outputs or shapes_of(outputs)
        rows = len(labels[0])
        figures.add("loss", float(loss), rows)
        for name, function, place in self.payload["metrics"]:
            output, label = outputs[place], labels[place]
            figures.add(name, float(function(output, losses.shaped_like(label, output))), rows)

    def _end_of_epoch(self, epoch: int, figures: dict[str, float]) -> None:
        if hvd.rank() == 0:
            if self.plan.verbose:
                words = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
                print(f"epoch {epoch + 1}/{self.plan.epochs}  {words}", flush=True)
            if self.plan.remote.saving_runs:
                data = dump(self.model, self.optimizer, epoch)
                self.plan.remote.store.write(self.plan.remote.checkpoint_path, data)
        for callback in self.payload["callbacks"]:
            getattr(callback, "on_epoch_end", callback)(epoch, figures)


class _Figures:
    """Metrics of an epoch, averaged over the rows of each rank and then across ranks."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._rows: dict[str, int] = defaultdict(int)

    def add(self, name: str, value: float, rows: int) -> None:
        self._sums[name] += value * rows
        self._rows[name] += rows

    def averaged(self, name: str) -> dict[str, float]:
        """Return the metrics, averaged across all ranks.

        All ranks have the same number of rows, so the result is the mean of the ranks' means. `name` is part of the
        allreduce's name.
        """
        means = [self._sums[key] / self._rows[key] for key in self._sums]
        own = torch.tensor(means, dtype=torch.float64, device="cpu")
        from_all = hvd.allreduce(own, name=f"spark.figures.{name}")
        return dict(zip(self._sums, from_all.tolist(), strict=True))


def own_device(use_gpu: bool) -> torch.device:
    """Return the rank's GPU, or the CPU if there is no GPU or if ``use_gpu`` is False."""
    if not use_gpu or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(own_gpu(torch.cuda.device_count(), hvd.local_rank()))
    return torch.device("cuda", torch.cuda.current_device())
