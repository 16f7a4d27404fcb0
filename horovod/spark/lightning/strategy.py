"""Lightning's strategy for ranks of Horovod: a device for each rank, gradients reduced by DistributedOptimizer."""

from typing import Any

import torch

import horovod.torch as hvd


def make_strategy(pl: Any, device: torch.device, compression: Any, passes: int) -> Any:
    """``pl``: the package. ``passes``: batches whose gradients are summed up before a step."""

    class HorovodStrategy(pl.strategies.SingleDeviceStrategy):  # type: ignore[misc, name-defined]
        strategy_name = "horovod"

        def __init__(self) -> None:
            super().__init__(device=device)
            self.global_rank, self.local_rank, self.world_size = hvd.rank(), hvd.local_rank(), hvd.size()

        def setup_optimizers(self, trainer: Any) -> None:
            super().setup_optimizers(trainer)
            named = list(self.lightning_module.named_parameters())
            for optimizer in self.optimizers:
                own = {id(one) for group in optimizer.param_groups for one in group["params"]}
                hvd.DistributedOptimizer(
                    optimizer,
                    [(name, one) for name, one in named if id(one) in own],
                    compression=compression or hvd.Compression.none,
                    backward_passes_per_step=passes,
                )

        @property
        def is_global_zero(self) -> bool:
            return hvd.rank() == 0

        def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
            """Over the ranks; ``group``: all."""
            if not isinstance(tensor, torch.Tensor):
                return tensor
            ops = {"mean": hvd.Average, "avg": hvd.Average, "sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}
            op = ops.get(str(reduce_op or "mean").rpartition(".")[2].lower())
            if op is None:
                raise ValueError(f"reduce_op is {reduce_op!r}, accepted is one of {', '.join(map(repr, ops))}")
            return hvd.allreduce(tensor if op != hvd.Average or tensor.is_floating_point() else tensor.float(), op=op)

        def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
            """A new first dimension: that of the ranks."""
            return hvd.allgather(tensor.unsqueeze(0))

        def broadcast(self, obj: Any, src: int = 0) -> Any:
            return hvd.broadcast_object(obj, root_rank=src)

        def barrier(self, *args: Any, **kwargs: Any) -> None:
            hvd.barrier()

        def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
            """Of all ranks, or of any of them."""
            votes = int(hvd.allreduce(torch.tensor(int(decision)), op=hvd.Sum))
            return votes == hvd.size() if all else votes > 0

    return HorovodStrategy()
