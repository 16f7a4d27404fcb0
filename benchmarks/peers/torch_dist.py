"""Benchmarks of torch.distributed (gloo or the hvd backend), DDP and FSDP2, for comparison with Horovod."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from cases import TRAINING, Case
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .model import GradientsOnly
from .training import step


class Peer:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        backend = os.environ.get("BENCH_BACKEND", "gloo")
        if backend == "hvd":
            import horovod.torch  # noqa: F401  # registers the backend
        dist.init_process_group(backend)
        self.rank = dist.get_rank()
        self.about = f"torch {torch.__version__} ({backend})"
        self.barrier = dist.barrier
        self.stop = dist.destroy_process_group
        check = torch.full((1000,), float(self.rank + 1))
        dist.all_reduce(check)
        assert bool((check == dist.get_world_size() * (dist.get_world_size() + 1) / 2).all())

    def prepare(self, case: Case, mode: str) -> Callable[[], None]:
        if case.kind in TRAINING:
            return step(case.kind, case.bytes, self._shard if mode == "fsdp" else self._wrap)
        if mode == "ddp":
            return self._step(case)
        tensors = [torch.ones(shape).zero_() for shape in reversed(case.shapes)]

        def sequential() -> None:
            for tensor in tensors:
                dist.all_reduce(tensor)

        def concurrent() -> None:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

        return {"blocking": sequential, "async": concurrent}[mode]

    def _step(self, case: Case) -> Callable[[], None]:
        model = GradientsOnly(case.shapes)
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)

        def step() -> None:
            parallel(None).backward()
            model.drop_gradients()

        return step

    def _wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return DistributedDataParallel(model, gradient_as_bucket_view=True), optimizer

    def _shard(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        for block in [*model.blocks, model]:
            fully_shard(block)
        return model, type(optimizer)(model.parameters(), lr=optimizer.defaults["lr"])
