"""Horovod for PyTorch Lightning 2.

Example::

    from horovod.torch.lightning import HorovodStrategy

    trainer = Trainer(strategy=HorovodStrategy())

With the strategy, ``horovodrun -np 4 python train.py`` starts a single training run on four ranks. Without it, the same
command starts four independent training runs.
"""

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import horovod.torch as hvd
from horovod.torch.optimizer import unwrap

NAMES = ("lightning.pytorch", "pytorch_lightning")


def package_of(who: str, model: Any = None) -> Any:
    """Return the Lightning package to which a LightningModule belongs. For any other object, return the installed one.

    Raises:
        ImportError: If lightning is not installed. The message says that ``who`` needs it.
    """
    for kind in type(model).__mro__:
        for name in NAMES:
            if kind.__module__.startswith(f"{name}."):
                return importlib.import_module(name)
    for name in NAMES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = error
    raise ImportError(
        f"{who} needs Lightning 2, which cannot be imported ({reason}); install it with: pip install lightning"
    ) from reason


def is_module(model: Any) -> bool:
    """Return True if ``model`` is a LightningModule."""
    return any(kind.__name__ == "LightningModule" and kind.__module__.startswith(NAMES) for kind in type(model).__mro__)


def make_environment(pl: Any) -> Any:
    """Return a cluster environment that describes a Horovod job. ``pl`` is the Lightning package.

    Without this environment, Lightning would try to detect other launchers.
    """
    from importlib import import_module

    base = import_module(f"{pl.__name__}.plugins.environments").ClusterEnvironment

    class HorovodEnvironment(base):  # type: ignore[misc, valid-type]
        """Cluster environment for ranks that are already running and connected."""

        @property
        def creates_processes_externally(self) -> bool:
            return True

        @property
        def main_address(self) -> str:
            raise RuntimeError("HorovodStrategy has no main address, because it does not use torch.distributed")

        @property
        def main_port(self) -> int:
            raise RuntimeError("HorovodStrategy has no main port, because it does not use torch.distributed")

        @staticmethod
        def detect() -> bool:
            return False

        def world_size(self) -> int:
            return hvd.size()

        def set_world_size(self, size: int) -> None:
            pass

        def global_rank(self) -> int:
            return hvd.rank()

        def set_global_rank(self, rank: int) -> None:
            pass

        def local_rank(self) -> int:
            return hvd.local_rank()

        def node_rank(self) -> int:
            return hvd.cross_rank()

    return HorovodEnvironment()


def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Gather the tensors of all ranks, in rank order, with a single allgather.

    The shapes of the tensors can differ between ranks. ``group`` is ignored: all ranks take part.

    Returns:
        The tensors of all ranks.
    """
    shapes = hvd.allgather_object(tuple(tensor.shape), name="lightning.metric.shape")
    sizes = [torch.Size(shape).numel() for shape in shapes]
    joined = hvd.allgather(tensor.detach().contiguous().reshape(-1), name="lightning.metric")
    return [part.reshape(shape) for part, shape in zip(joined.split(sizes), shapes, strict=True)]


class Gathering:
    """Context in which a module's metrics are synchronized through Horovod. It lasts until ``end`` is called.

    A user-defined ``dist_sync_fn`` is kept.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        from torchmetrics import Metric

        self._before = [
            (one, one.distributed_available_fn)
            for one in module.modules()
            if isinstance(one, Metric) and one.dist_sync_fn is None
        ]
        for one, _ in self._before:
            one.dist_sync_fn, one.distributed_available_fn = gather, _has_other_ranks

    def end(self) -> None:
        for one, available in self._before:
            one.dist_sync_fn, one.distributed_available_fn = None, available


def _has_other_ranks() -> bool:
    return hvd.is_initialized() and hvd.size() > 1


def own_device(devices: Sequence[torch.device], local_rank: int, local_size: int, gpus: int) -> torch.device:
    """Return this rank's device, selected from the Trainer's ``devices``.

    Args:
        devices: ``devices`` as parsed by Lightning, which interprets ``devices=1`` as GPU 0. For this value, the ranks
            of a host share all of its GPUs. For other values, they use the given devices in order.
        local_rank: Local rank of this process.
        local_size: Number of ranks on this host.
        gpus: Number of GPUs that are visible to this process.

    Raises:
        ValueError: If ``devices`` does not match the ranks.
    """
    kind = devices[0].type
    if kind == "cpu" and len(devices) in (1, local_size):
        return devices[0]
    if kind == "cuda":
        if len(devices) == 1 and devices[0].index == 0:
            return torch.device("cuda", local_rank % gpus)
        if len(devices) >= local_size:
            return devices[local_rank]
    supported = (
        "1, 'auto' or, for GPUs, as many as this host has ranks" if kind in ("cpu", "cuda") else "of CPU or CUDA"
    )
    raise ValueError(
        f"the Trainer's devices must be {supported}, got {', '.join(map(str, devices))} for {local_size} ranks on this "
        "host, each of which uses one device"
    )


_OPS = {"mean": hvd.Average, "avg": hvd.Average, "sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}


def make_class(pl: Any) -> Any:
    """Return the strategy class, a subclass of ParallelStrategy in the Lightning package ``pl``."""

    class HorovodStrategy(_Reductions, pl.strategies.ParallelStrategy):  # type: ignore[misc, name-defined]
        strategy_name = "horovod"
        is_distributed = True
        """Lightning checks this attribute.

        If it were missing, Lightning would add no sampler and ignore ``sync_dist``.
        """

        def __init__(self, device: torch.device | None, options: Mapping[str, Any]) -> None:
            """Create the strategy. ``options`` are passed to hvd.DistributedOptimizer."""
            self._device, self._options = device, options
            self._passes, self._blocked = 1, False
            self._metrics: Gathering | None = None
            super().__init__(
                parallel_devices=None if device is None else [device], cluster_environment=make_environment(pl)
            )
            # Lightning prints messages and writes files only on its global rank 0, which must be Horovod's rank 0.
            pl.utilities.rank_zero_only.rank = hvd.rank()

        @property
        def root_device(self) -> torch.device:
            assert self._device is not None, "the Trainer sets it"
            return self._device

        @property
        def parallel_devices(self) -> list[torch.device] | None:
            return None if self._device is None else [self._device]

        @parallel_devices.setter
        def parallel_devices(self, devices: Sequence[torch.device] | None) -> None:
            """Select this rank's device from the devices found by the Trainer."""
            if devices and self._device is None:
                gpus = torch.cuda.device_count() if devices[0].type == "cuda" else 0
                self._device = own_device(devices, hvd.local_rank(), hvd.local_size(), gpus)

        @property
        def distributed_sampler_kwargs(self) -> dict[str, Any]:
            return {"num_replicas": hvd.size(), "rank": hvd.rank()}

        def model_to_device(self) -> None:
            self.model.to(self.root_device)

        def setup(self, trainer: Any) -> None:
            """Broadcast rank 0's parameters and buffers to all ranks."""
            if self._layer_sync is not None:
                raise ValueError(
                    "sync_batchnorm must be False, got True, which needs torch.distributed; use "
                    "horovod.torch.SyncBatchNorm in the model"
                )
            self.model_to_device()
            module = self.lightning_module
            hvd.broadcast_parameters([*module.named_parameters(), *module.named_buffers()], root_rank=0)
            self._metrics = Gathering(module)
            super().setup(trainer)

        def setup_optimizers(self, trainer: Any) -> None:
            super().setup_optimizers(trainer)
            named = list(self.lightning_module.named_parameters())
            self._passes = trainer.accumulate_grad_batches
            for optimizer in self.optimizers:
                own = {id(one) for group in optimizer.param_groups for one in group["params"]}
                names = [(name, one) for name, one in named if id(one) in own]
                hvd.DistributedOptimizer(
                    optimizer,
                    # Pass no names if some parameters of the optimizer do not belong to the module and thus have no
                    # name.
                    names if len(names) == len(own) else None,
                    backward_passes_per_step=self._passes,
                    **self._options,
                )
            # Assign the optimizers again, because Lightning's wrappers still have their old classes.
            self.optimizers = self.optimizers

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            passes = self.lightning_module.trainer.accumulate_grad_batches
            # A callback can change accumulate_grad_batches between epochs.
            if passes != self._passes:
                self._passes = passes
                for optimizer in self.optimizers:
                    optimizer.set_backward_passes_per_step(passes)

        @contextmanager
        def block_backward_sync(self) -> Iterator[None]:
            """Return a context manager for backward passes that are not followed by an optimizer step."""
            self._blocked = True
            try:
                yield
            finally:
                self._blocked = False

        def post_backward(self, closure_loss: torch.Tensor) -> None:
            """Reduce accumulated gradients before Lightning clips them.

            At the end of an epoch, a step can follow fewer passes than the optimizer expects. Lightning clips the
            gradients before that step.
            """
            super().post_backward(closure_loss)
            if self._passes > 1 and not self._blocked:
                for optimizer in self.optimizers:
                    optimizer._hvd.synchronize()

        def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
            """Read a checkpoint on rank 0 and send it to all ranks, including the optimizers' state.

            The other ranks do not need access to the file.

            Returns:
                The checkpoint.

            Raises:
                RuntimeError: If rank 0 cannot read the file. Raised on the other ranks.
            """
            found, error = None, None
            if hvd.rank() == 0:
                try:
                    found = super().load_checkpoint(checkpoint_path, *args, **kwargs)
                except BaseException as wrong:
                    hvd.broadcast_object((None, f"{type(wrong).__name__}: {wrong}"), name="lightning.checkpoint")
                    raise
            found, error = hvd.broadcast_object((found, error), name="lightning.checkpoint")
            if error is not None:
                raise RuntimeError(f"rank 0 cannot read the checkpoint {checkpoint_path}: {error}")
            return found  # type: ignore[return-value]

        def teardown(self) -> None:
            # Make the optimizers plain again, because the next fit() creates new distributed ones for the same
            # parameters.
            for optimizer in self.optimizers:
                unwrap(optimizer)
            self.optimizers = self.optimizers
            if self._metrics is not None:
                self._metrics.end()
            super().teardown()

    return HorovodStrategy


class _Reductions:
    """Strategy methods that Lightning calls to communicate between ranks."""

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks; return other values unchanged.

        ``group`` is ignored. The mean of an integer tensor is returned as float64.

        Returns:
            The reduced tensor, or the other value.

        Raises:
            ValueError: If ``reduce_op`` is not mean, sum, max or min, as a string or as a value of torch.distributed.
        """
        if not isinstance(tensor, torch.Tensor):
            return tensor
        op = _OPS.get(str(reduce_op or "mean").rpartition(".")[2].lower())
        if op is None:
            raise ValueError(f"reduce_op must be one of {', '.join(map(repr, _OPS))}, got {reduce_op!r}")
        # Use float64, because float32 cannot represent all integers above 2^24.
        return hvd.allreduce(tensor if op != hvd.Average or tensor.is_floating_point() else tensor.double(), op=op)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Gather the tensors of all ranks, stacked along a new first dimension.

        ``group`` is ignored. With ``sync_grads``, the operation is differentiable, and the gradient is the sum over all
        ranks.

        Returns:
            Tensor with one more dimension than ``tensor``.
        """
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            gathered = hvd.allgather(tensor.unsqueeze(0).contiguous())
        if gathered.requires_grad:
            # Multiply by the size, because the gradient of allgather is an average.
            gathered.register_hook(lambda gradient: gradient * hvd.size())
        return gathered

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, root_rank=src)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        hvd.barrier()

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return True if ``decision`` is True on all ranks or, with ``all=False``, on any rank."""
        votes = int(hvd.allreduce(torch.tensor(int(decision), device="cpu"), op=hvd.Sum))
        return votes == hvd.size() if all else votes > 0


__all__ = ["HorovodStrategy"]


def HorovodStrategy(
    compression: Any = hvd.Compression.none,
    op: int = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    device: torch.device | None = None,
    package: Any = None,
) -> Any:
    """Return a Lightning strategy that trains on the ranks of a Horovod job.

    The function calls ``hvd.init()`` if necessary. Each rank is a process with one device. Before training, parameters
    and buffers are set to rank 0's values. ``hvd.DistributedOptimizer`` reduces the gradients, with
    ``accumulate_grad_batches`` once per step. Data loaders get a ``DistributedSampler``. Values logged with
    ``sync_dist=True``, and torchmetrics metrics, cover all ranks. Only rank 0 reads and writes checkpoints.

    Args:
        compression (Compressor): Same as in ``hvd.DistributedOptimizer``. Default: none.
        op (int): Same as in ``hvd.DistributedOptimizer``. Default: ``Average``.
        gradient_predivide_factor (float): Same as in ``hvd.DistributedOptimizer``. Default: 1.0.
        sparse_as_dense (bool): Same as in ``hvd.DistributedOptimizer``. Default: False.
        device (torch.device, optional): Device of this rank. Default: chosen by the local rank from the Trainer's
            ``devices``.
        package (module, optional): The module ``lightning.pytorch`` or ``pytorch_lightning``; a Trainer accepts only
            strategies of the package. Default: the package that the program has imported.

    Returns:
        Strategy: Strategy for ``Trainer(strategy=...)``.

    Raises:
        ImportError: If lightning is not installed.
        ValueError: If ``package`` is another module. Arguments for the optimizer are checked later, when it is created.
    """
    if package is None:
        imported = [sys.modules[name] for name in NAMES if name in sys.modules]
        package = imported[0] if len(imported) == 1 else package_of("horovod.torch.lightning")
    elif getattr(package, "__name__", None) not in NAMES:
        raise ValueError(f"package must be one of the modules {' and '.join(NAMES)}, got {package!r}")
    if not hvd.is_initialized():
        hvd.init()
    options = {
        "compression": compression,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
    }
    return _class_of(package)(device, options)


_class_of = functools.cache(make_class)
