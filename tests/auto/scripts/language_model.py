"""Train a character-level language model on a text of Python's standard library."""

import argparse
import inspect
import logging
import math
import pathlib
import random

import torch
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("lm")


class Blocks(Dataset):
    def __init__(self, ids, block_size):
        self.ids, self.block_size = ids, block_size

    def __len__(self):
        return (len(self.ids) - 1) // self.block_size

    def __getitem__(self, i):
        start = i * self.block_size
        chunk = self.ids[start : start + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class CharLM(nn.Module):
    def __init__(self, vocab, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def evaluate(model, loader, criterion):
    model.eval()
    total, count = 0.0, 0
    for x, y in loader:
        with torch.no_grad():
            logits = model(x)
            total += criterion(logits.flatten(0, 1), y.flatten()).item() * y.numel()
            count += y.numel()
    return total / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--max-updates", type=int, default=1000000)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--save", default="lm.pt")
    args = p.parse_args()

    random.seed(7)
    torch.manual_seed(7)
    torch.set_default_dtype(getattr(torch, args.dtype))

    text = pathlib.Path(inspect.getsourcefile(argparse)).read_text()[:40000]
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text])
    split = int(0.9 * len(ids))
    train_loader = DataLoader(Blocks(ids[:split], 64), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(Blocks(ids[split:], 64), batch_size=32)

    model = CharLM(len(chars))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    updates_per_epoch = math.ceil(len(train_loader) / args.accumulate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates_per_epoch * args.epochs)
    criterion = nn.CrossEntropyLoss()
    updates, best = 0, float("inf")

    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        for step, (x, y) in enumerate(train_loader, start=1):
            loss = criterion(model(x).flatten(0, 1), y.flatten()) / args.accumulate
            loss.backward()
            if step % args.accumulate == 0 or step == len(train_loader):
                norm = clip_grad_norm_(model.parameters(), max_norm=0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                updates += 1
                if updates % 20 == 0:
                    log.info("update %d loss %.4f norm %.4f", updates, loss.item() * args.accumulate, norm)
                if updates == args.max_updates:
                    break
        val = evaluate(model, val_loader, criterion)
        log.info("epoch %d validation perplexity %.10f", epoch, math.exp(val))
        if val < best:
            best = val
            torch.save({"model": model.state_dict(), "epoch": epoch}, args.save)
        if updates == args.max_updates:
            break
    state = torch.load(args.save)
    print("best epoch", state["epoch"])


if __name__ == "__main__":
    main()
