"""Benchmark of Horovod's PyTorch frontend."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import TRAINING, Case
from torch import nn

import horovod.torch as hvd

from .model import GradientsOnly
from .training import step

# Value of the optimizer's gradient_as_bucket_view argument in each mode.
BUCKET_VIEWS = {"optimizer": None, "step": None, "bucket views": True, "one by one": False}


class Peer:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        hvd.init()
        self.rank = hvd.rank()
        self.about = "horovod " + __import__("horovod").__version__
        self.barrier = hvd.barrier
        self.stop = hvd.shutdown
        check = torch.full((1000,), float(hvd.rank() + 1))
        hvd.allreduce_(check, op=hvd.Sum)
        assert bool((check == hvd.size() * (hvd.size() + 1) / 2).all())

    def prepare(self, case: Case, mode: str) -> Callable[[], None]:
        if case.kind in TRAINING:
            return step(case.kind, case.bytes, lambda *net: self._wrap(*net, bucket_views=BUCKET_VIEWS[mode]))
        if mode in BUCKET_VIEWS:
            return self._step(case, BUCKET_VIEWS[mode])
        name = f"{case.kind}.{case.label}"
        tensors = [torch.ones(shape).zero_() for shape in reversed(case.shapes)]
        if mode in ("allreduce_", "shared"):
            tensor = tensors[0] if mode == "allreduce_" else hvd.empty_shared(*case.shapes[0]).zero_()
            return lambda: (hvd.allreduce_(tensor, op=hvd.Sum, name=f"{name}.{mode}"), None)[1]
        names = [f"{name}.{i}" for i in range(len(tensors))]

        def concurrent() -> None:
            handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=n) for t, n in zip(tensors, names, strict=True)]
            for handle in handles:
                hvd.synchronize(handle)

        return concurrent

    def _step(self, case: Case, bucket_views: bool | None) -> Callable[[], None]:
        model = GradientsOnly(case.shapes)
        named = [(f"{case.kind}.{name}", parameter) for name, parameter in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=named,
            gradient_as_bucket_view=bucket_views,
        )

        # Do not call optimizer.step(), because the DDP measurement does not include it either.
        def step() -> None:
            model(None).backward()
            optimizer.synchronize()
            model.drop_gradients()

        return step

    def _wrap(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, bucket_views: bool | None
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), gradient_as_bucket_view=bucket_views
        )
