"""Train a GPT whose parameters and Adam state do not fit in the memory that one worker may use.

    horovodrun -np 2 python examples/pytorch/large_gpt.py --method sharded
    horovodrun -np 4 python examples/pytorch/large_gpt.py --method fsdp
    horovodrun -np 1 python examples/pytorch/large_gpt.py --plain    # fails: out of memory

Each worker limits its own memory with RLIMIT_DATA (`--memory`). The default model has 353 million parameters: with the
two moments of Adam they take 3.95 GiB, and 5.26 GiB with gradients, but a worker may use only 3.9 GiB.

- `sharded`: every worker has all parameters and a part of the optimizer's state (`hvd.ShardedOptimizer`).
- `fsdp`: every worker has a part of everything (FSDP2 of PyTorch, with Horovod as the backend of torch.distributed).
- `--plain`: every worker has everything, as in an ordinary script.

`--resume` continues from the checkpoint, also with another number of workers. The text is the language reference that
is part of Python, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd

VOCABULARY = 256  # bytes
GIB = 2**30


class Block(nn.Module):
    """Transformer block with pre-normalization that recomputes its activations in the backward pass."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        # Scale the weights down, because 2 * layers outputs are added to the residual stream.
        with torch.no_grad():
            self.out.weight.div_((2 * layers) ** 0.5)
            self.mlp[2].weight.div_((2 * layers) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.compute, x, use_reentrant=False)

    def compute(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """GPT that maps bytes (n, time) to logits (n, time, 256).

    `wrap` is called on each block as it is created, so that a method that shards the parameters never needs memory for
    the whole model.
    """

    def __init__(self, layers: int, width: int, heads: int, context: int, wrap: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(wrap(Block(width, heads, layers)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        wrap(self)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def build(args: argparse.Namespace) -> tuple[GPT, Any]:
    """Create the model and the optimizer. The seed makes the parameters equal on all ranks."""
    torch.manual_seed(args.seed)
    shape = args.layers, args.width, args.heads, args.context
    if args.method == "fsdp":
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("hvd", init_method="hvd://")
        model = GPT(*shape, wrap=fully_shard)
        return model, torch.optim.AdamW(model.parameters(), lr=args.lr)
    model = GPT(*shape, wrap=lambda module: module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    wrap = hvd.ShardedOptimizer if args.method == "sharded" else hvd.DistributedOptimizer
    return model, wrap(optimizer, named_parameters=model.named_parameters())


def save(args: argparse.Namespace, model: GPT, optimizer: Any, step: int) -> None:
    """Save a checkpoint: a folder with one file per rank for FSDP2, a single file for other methods."""
    path: Path = args.checkpoint
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write under another name first, so that a failure while writing leaves the previous checkpoint intact.
    new = path.with_name(f"{path.name}.new")
    if args.method == "fsdp":
        from torch.distributed.checkpoint import save
        from torch.distributed.checkpoint.state_dict import get_state_dict

        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        save({**state, "step": step}, checkpoint_id=new)
    else:
        # Put the full state into temporary files, because rank 0 does not have enough memory for it.
        options = {"folder": path.parent} if args.method == "sharded" else {}
        state = optimizer.state_dict(**options)
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": state, "step": step}, new)
    hvd.barrier()
    if hvd.rank() == 0:
        if path.is_dir():
            shutil.rmtree(path)
        new.replace(path)
    hvd.barrier()


def load(args: argparse.Namespace, model: GPT, optimizer: Any) -> int:
    """Load a checkpoint written by any number of workers, and return the number of finished steps."""
    if not args.checkpoint.exists():
        raise SystemExit(f"--resume: there is no checkpoint at {args.checkpoint}; run once without --resume")
    if args.method == "fsdp":
        from torch.distributed.checkpoint import load
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        state: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        state["step"] = 0
        load(state, checkpoint_id=args.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(state["step"])
    # Map the file into memory instead of copying it.
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        saved = torch.load(args.checkpoint, mmap=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def batch(text: Tensor, args: argparse.Namespace, step: int) -> Tensor:
    """Return this rank's windows for a step, as indices of shape (batch_size, context + 1)."""
    generator = torch.Generator().manual_seed(args.seed + step * hvd.size() + hvd.rank())
    starts = torch.randint(len(text) - args.context, (args.batch_size, 1), generator=generator)
    return text[starts + torch.arange(args.context + 1)].long()


def report_memory(args: argparse.Namespace, model: GPT) -> None:
    """Print the memory that an unsharded script would need, and the peak usage of any worker."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, shared = (int(status[key].split()[0]) * 1024 / GIB for key in ("VmHWM", "RssShmem"))
    most = hvd.allreduce(torch.tensor([peak, shared]), op=hvd.Max, name="memory").tolist()
    needed = sum(12 * p.numel() for p in model.parameters()) / GIB
    if hvd.rank() == 0:
        print(f"parameters and Adam state {needed:.2f} GiB, limit for a worker {args.memory:.2f} GiB")
        print(f"peak RSS {most[0]:.2f} GiB, of which shared memory of the engine {most[1]:.2f} GiB", flush=True)


def train(args: argparse.Namespace) -> None:
    limit = int(args.memory * GIB)
    # Set malloc's M_MMAP_THRESHOLD (-3), so that freed tensors return to the system immediately.
    ctypes.CDLL(None).mallopt(-3, 2**22)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    hvd.init()
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    model, optimizer = build(args)
    done = load(args, model, optimizer) if args.resume else 0
    # Reset the peak RSS, because it includes pages of the checkpoint file.
    Path("/proc/self/clear_refs").write_text("5")
    if hvd.rank() == 0:
        count = sum(p.numel() for p in model.parameters())
        print(f"method {args.method}, {hvd.size()} workers, {count:,} parameters, {done} steps done", flush=True)
    for step in range(done + 1, args.steps + 1):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(step / 10, 1.0)  # warm-up
        windows = batch(text, args, step)
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        if args.method == "sharded":
            optimizer.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0:
            seconds = time.perf_counter() - start
            print(f"step {step:3d}/{args.steps}  loss {mean:.4f}  {seconds:.2f} s", flush=True)
    report_memory(args, model)
    save(args, model, optimizer, args.steps)
    if args.method == "fsdp":
        dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=["sharded", "fsdp"], default="sharded", help="default: %(default)s")
    parser.add_argument("--plain", dest="method", action="store_const", const="plain", help="the ordinary script")
    parser.add_argument("--memory", type=float, default=3.9, help="GiB that a worker may use (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="steps in all, resumed ones included (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1, help="windows of a worker in a step (%(default)s)")
    parser.add_argument("--context", type=int, default=64, help="bytes of context (%(default)s)")
    parser.add_argument("--layers", type=int, default=28, help="transformer blocks (%(default)s)")
    parser.add_argument("--width", type=int, default=1024, help="model width (%(default)s)")
    parser.add_argument("--heads", type=int, default=16, help="attention heads (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="for initial weights and data (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/large_gpt"), help="%(default)s")
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_args())
