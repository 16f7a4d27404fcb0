"""Train a small encoder-decoder that reverses words, on padded batches."""

import argparse
import keyword
import random
import sys

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--limit", type=int, default=10000)
parser.add_argument("--save", default="translation.pt")
args = parser.parse_args()

random.seed(2)
torch.manual_seed(2)
vocabulary = sorted({*keyword.kwlist, *sys.stdlib_module_names, *dir(str), *dir(torch)[:900]})
random.shuffle(vocabulary)
PAD, BOS, EOS = 0, 1, 2
vocab = {c: i + 3 for i, c in enumerate(set("".join(vocabulary)))}


def encode(w):
    return torch.tensor([vocab[c] for c in w])


pairs = [(w, w[::-1]) for w in vocabulary]
valid, train = pairs[:100], pairs[100 : 100 + args.limit]


def collate(batch):
    src = pad_sequence([encode(a) for a, _ in batch], batch_first=True, padding_value=PAD)
    tgt = pad_sequence(
        [torch.cat([torch.tensor([BOS]), encode(b), torch.tensor([EOS])]) for _, b in batch],
        batch_first=True,
        padding_value=PAD,
    )
    return src, tgt


train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
valid_loader = DataLoader(valid, batch_size=50, shuffle=False, collate_fn=collate)


class Seq2Seq(nn.Module):
    def __init__(self, n, d=24):
        super().__init__()
        self.embed = nn.Embedding(n, d, padding_idx=PAD)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, n)

    def forward(self, src, tgt):
        lengths = (src != PAD).sum(1)
        packed = pack_padded_sequence(self.embed(src), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.encoder(packed)
        y, _ = self.decoder(self.embed(tgt), h)
        return self.out(y)


model = Seq2Seq(len(vocab) + 3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(args.epochs):
    model.train()
    total = 0
    for src, tgt in train_loader:
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.size(-1)), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        val = sum(criterion(model(s, t[:, :-1]).transpose(1, 2), t[:, 1:]).item() for s, t in valid_loader) / len(
            valid_loader
        )
    print(f"epoch {epoch} train {total / len(train_loader):.5f} valid {val:.5f}")
torch.save(model.state_dict(), args.save)
