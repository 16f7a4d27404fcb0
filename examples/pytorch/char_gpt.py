"""Train a small character-level GPT on the source text of Python's standard library.

    horovodrun -np 2 python examples/pytorch/char_gpt.py
    horovodrun -np 2 python examples/pytorch/char_gpt.py --steps 800 --resume
    horovodrun -np 2 python examples/pytorch/char_gpt.py --device cuda

Every machine with Python has the text, so nothing is downloaded. The loss starts near ln(vocabulary), about 4.6 nats
per character, and falls below 2.0 within a few hundred steps. The lines marked `# Horovod:` are all that Horovod adds
to the training.

Model: decoder-only transformer with pre-normalization (Vaswani et al. 2017; Radford et al. 2019), rotary positions (Su
et al. 2021), output weights tied to the character embedding, no dropout, AdamW with warm-up and cosine decay.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import horovod.torch as hvd

# Characters in the vocabulary of the model. The last one stands for all characters that are not listed.
VOCABULARY = "\n" + "".join(chr(code) for code in range(32, 127)) + "\0"


def read_corpus(characters: int) -> Tensor:
    """Return the beginning of the standard library's source text as uint8 indices."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = ""
    for path in sorted(folder.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").expandtabs(4)
        if len(text) >= characters:
            break
    if len(text) < 10_000:
        raise SystemExit(
            f"found only {len(text)} characters of Python source in {folder}; is the standard library zipped?"
        )
    index = {character: i for i, character in enumerate(VOCABULARY)}
    other = len(VOCABULARY) - 1
    return torch.tensor([index.get(character, other) for character in text[:characters]], dtype=torch.uint8)


class Windows(Dataset[Tensor]):
    """Dataset of non-overlapping windows: `context` characters and the character that follows."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.text[start : start + self.context + 1].long()


class Block(nn.Module):
    """Transformer block on (n, time, width): causal self-attention and an MLP, with pre-normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embeddings to x of shape (n, heads, time, 2 * pairs)."""
    cosines, sines = turns
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosines - b * sines, a * sines + b * cosines], dim=-1)


def angles(length: int, pairs: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (length, pairs) of rotary position embeddings with base 10,000."""
    angle = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(pairs) / pairs))
    return angle.cos(), angle.sin()


class GPT(nn.Module):
    """GPT model that maps indices (n, time) to logits (n, time, vocabulary)."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.pairs = width // heads // 2
        self.characters = nn.Embedding(len(VOCABULARY), width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        spread = 0.5 / math.sqrt(width)
        for name, parameter in self.named_parameters():
            if (
                parameter.dim() == 2
            ):  # Scale the weights down, because 2 * layers outputs are added to the residual stream.
                shrink = math.sqrt(2 * layers) if name.endswith(("out.weight", "mlp.2.weight")) else 1.0
                nn.init.normal_(parameter, std=spread / shrink)

    def forward(self, indices: Tensor) -> Tensor:
        cosines, sines = angles(indices.shape[1], self.pairs)
        turns = cosines.to(indices.device), sines.to(indices.device)
        x = self.characters(indices)
        for block in self.blocks:
            x = block(x, turns)
        return F.linear(self.norm(x), self.characters.weight)


def next_character_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per character for windows of shape (n, context + 1)."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def endless(loader: DataLoader[Tensor], sampler: hvd.Sampler, batch_size: int) -> Iterator[Tensor]:
    """Yield this rank's batches, epoch after epoch.

    A resumed run continues with the batch after the last one that was used.
    """
    while True:
        for index, batch in enumerate(hvd.sync(loader)):
            # Record the batch before its step, so that a checkpoint after the step includes the batch.
            sampler.record_batch(index, batch_size)
            yield batch
        sampler.set_epoch(sampler.epoch + 1)


@torch.no_grad()
def held_out_loss(model: nn.Module, windows: list[Tensor], device: torch.device) -> float:
    """Return the mean loss over all windows. Each rank evaluates a part of the windows."""
    loss = hvd.Metric("mean")
    for batch in windows:
        loss.update(next_character_loss(model, batch.to(device)).item(), len(batch))
    return loss.compute()


def set_learning_rate(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Set the learning rate: linear warm-up over 40 steps, then cosine decay to a tenth of the peak."""
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = peak * min((step + 1) / 40, decay)


def check_same_everywhere(model: nn.Module) -> None:
    """Print a digest of the parameters, or end the job if they differ between ranks."""
    digest = hvd.check_in_sync(model)
    if hvd.rank() == 0:
        print(f"parameters identical on all {hvd.size()} ranks: sha256 {digest[:16]}", flush=True)


@torch.no_grad()
def sample(model: nn.Module, context: int, characters: int, seed: int, device: torch.device) -> str:
    generator = torch.Generator().manual_seed(seed)
    text = torch.tensor([[VOCABULARY.index(character) for character in "\ndef "]])
    for _ in range(characters):
        odds = F.softmax(model(text[:, -context:].to(device))[:, -1].cpu() / 0.8, dim=-1)
        text = torch.cat([text, torch.multinomial(odds, 1, generator=generator)], dim=1)
    return "".join(VOCABULARY[i] for i in text[0].tolist())


def positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on the text of Python's standard library.")
    parser.add_argument(
        "--steps", type=positive(int), default=300, help="steps in all, resumed ones included (default %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=positive(int), default=16, help="windows per worker and step (default %(default)s)"
    )
    parser.add_argument(
        "--lr", type=positive(float), default=2e-3, help="peak learning rate of one worker (default %(default)s)"
    )
    parser.add_argument("--layers", type=positive(int), default=4, help="transformer blocks (default %(default)s)")
    parser.add_argument("--width", type=positive(int), default=128, help="model width (default %(default)s)")
    parser.add_argument("--heads", type=positive(int), default=4, help="attention heads (default %(default)s)")
    parser.add_argument("--context", type=positive(int), default=64, help="characters of context (default %(default)s)")
    parser.add_argument(
        "--corpus", type=positive(int), default=2_000_000, help="characters of text (default %(default)s)"
    )
    parser.add_argument(
        "--log-every", type=positive(int), default=25, help="steps between two reports (default %(default)s)"
    )
    parser.add_argument(
        "--save-every", type=positive(int), default=100, help="steps between two checkpoints (default %(default)s)"
    )
    parser.add_argument(
        "--compression",
        choices=["none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"],
        default="none",
        help="how gradients travel, an attribute of hvd.Compression (default %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where the model is; cuda: a GPU each, in turn where there are fewer than workers (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="for data order and initial weights (default %(default)s)")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("runs/char_gpt"), help="directory for checkpoints (default %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if args.width % (2 * args.heads):
        parser.error(f"--width: {args.width} is not an even multiple of --heads {args.heads}")
    return args


def train(args: argparse.Namespace) -> None:
    # Horovod: initialize Horovod.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    if args.device == "cuda":
        # Horovod: use one GPU per rank.
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())

    text = read_corpus(args.corpus)
    cut = len(text) - len(text) // 20
    train_set, test_set = Windows(text[:cut], args.context), Windows(text[cut:], args.context)
    # Horovod: give each rank a shard of the data.
    sampler = hvd.Sampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    chosen = [test_set[i] for i in range(rank, min(256, len(test_set)), size)]
    test = [torch.stack(chosen[i : i + 64]) for i in range(0, len(chosen), 64)]

    model = GPT(args.layers, args.width, args.heads).to(device)
    # Horovod: scale the learning rate, because the global batch is larger.
    peak = args.lr * size
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    # Horovod: average the gradients.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=getattr(hvd.Compression, args.compression)
    )
    # Horovod: start all ranks with rank 0's weights.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}
    done = hvd.load_checkpoint(args.checkpoint, **state) if args.resume else 0
    if done is None:
        raise SystemExit(f"--resume: no checkpoint in {args.checkpoint}; run once without --resume")

    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(
            f"{size} workers, {count:,} parameters, {len(text):,} characters,"
            f" ln(vocabulary) {math.log(len(VOCABULARY)):.3f}",
            flush=True,
        )
        if args.resume:
            print(f"resumed from {args.checkpoint} after step {done}", flush=True)
    began = start = time.perf_counter()
    recent, first = [], done
    batches = endless(loader, sampler, args.batch_size)
    with tqdm(
        total=args.steps, initial=done, unit="step", mininterval=1.0, disable=args.no_progress or rank != 0
    ) as bar:
        for step in range(done + 1, args.steps + 1):
            set_learning_rate(optimizer, peak, step - 1, args.steps)
            optimizer.zero_grad()
            loss = next_character_loss(model, next(batches).to(device))
            loss.backward()
            optimizer.step()
            recent.append(loss.detach())
            bar.update()
            if step == done + 1 or step % args.log_every == 0 or step == args.steps:
                # All ranks have the same number of losses, so averaging the ranks' means gives the exact mean.
                mean = hvd.allreduce(torch.stack(recent).mean(), name="loss").item()
                rate = (step - first) * args.batch_size * args.context / (time.perf_counter() - start)
                if rank == 0:
                    tqdm.write(
                        f"step {step:4d}/{args.steps}  loss {mean:.4f}"
                        f"  characters/s {rate:,.0f} per worker, {rate * size:,.0f} in total"
                    )
                recent, first, start = [], step, time.perf_counter()
            if step % args.save_every == 0 or step == args.steps:
                # Check that all ranks have the same state, because the checkpoint contains only the state of rank 0.
                hvd.check_in_sync(model, optimizer)
                hvd.save_checkpoint(args.checkpoint, step=step, **state)

    final = held_out_loss(model, test, device)
    if rank == 0:
        print(f"trained for {time.perf_counter() - began:.1f} s, checkpoint in {args.checkpoint}", flush=True)
        print(f"final held-out loss {final:.4f} nats per character", flush=True)
        print(f"a sample of its Python:{sample(model, args.context, 200, args.seed, device)}", flush=True)
    check_same_everywhere(model)


if __name__ == "__main__":
    train(parse_args())
