"""Train a next-character model on a stream of lines that the workers of the loader share."""

import argparse
import itertools
import pydoc_data.topics

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, limit):
        text = pydoc_data.topics.topics
        self.lines = [s for k in sorted(text) for s in text[k].splitlines() if len(s) > 24][:limit]

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for line in itertools.islice(self.lines, start, None, step):
            ids = torch.tensor([min(ord(c), 127) for c in line[:25]])
            yield ids[:-1], ids[1:]


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--limit", type=int, default=900)
parser.add_argument("--save", default="stream.pt")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(Lines(args.limit), batch_size=args.batch_size)
embed = nn.Embedding(128, 16)
rnn = nn.LSTM(16, 32, batch_first=True)
head = nn.Linear(32, 128)
modules = nn.ModuleList([embed, rnn, head])
optimizer = torch.optim.Adam(modules.parameters(), lr=3e-3)
step = 0
for _ in range(args.epochs):
    for x, y in loader:
        out, _ = rnn(embed(x))
        loss = nn.functional.cross_entropy(head(out).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
torch.save(modules.state_dict(), args.save)
