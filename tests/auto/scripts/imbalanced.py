"""Classify an imbalanced data set with class weights, an L2 penalty and a validation split by sampler."""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

ap = argparse.ArgumentParser()
ap.add_argument("--batch-size", type=int, default=16)
ap.add_argument("--epochs", type=int, default=4)
ap.add_argument("--limit", type=int, default=450)
ap.add_argument("--save", default="imbalanced.pt")
args = ap.parse_args()

np.random.seed(4)
torch.manual_seed(4)
x, y = load_breast_cancer(return_X_y=True)
x = (x - x.mean(0)) / x.std(0)
dataset = TensorDataset(torch.from_numpy(x).to(torch.get_default_dtype()), torch.from_numpy(y))
indices = np.random.permutation(len(dataset))
train_idx, val_idx = indices[: args.limit], indices[450:]
train_loader = DataLoader(dataset, batch_size=args.batch_size, sampler=SubsetRandomSampler(train_idx))
val_loader = DataLoader(dataset, batch_size=args.batch_size, sampler=SubsetRandomSampler(val_idx))

counts = np.bincount(y[train_idx], minlength=2)
weights = torch.tensor(len(train_idx) / (2 * counts), dtype=torch.get_default_dtype())
criterion = nn.CrossEntropyLoss(weight=weights)
model = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

best = None
for epoch in range(args.epochs):
    model.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        loss = criterion(outputs, labels) + 1e-4 * l2
        loss.backward()
        optimizer.step()
    model.eval()
    val_loss, hits = 0.0, 0
    with torch.no_grad():
        for inputs, labels in val_loader:
            outputs = model(inputs)
            val_loss += criterion(outputs, labels).item() * len(labels)
            hits += (outputs.argmax(1) == labels).sum().item()
    print(f"Epoch {epoch + 1}/{args.epochs} val loss {val_loss / len(val_idx):.6f} acc {hits / len(val_idx):.4f}")
    if best is None or val_loss < best:
        best = val_loss
        torch.save(model.state_dict(), args.save)
model.load_state_dict(torch.load(args.save))
print("restored the best model, validation loss", best / len(val_idx))
