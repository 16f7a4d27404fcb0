"""Fit house-like prices; the script can also run under torchrun, so it uses a DistributedSampler."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=700)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    if world_size > 1:
        dist.init_process_group("gloo")

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(700, 12))[: args.limit]
    y = x @ rng.normal(size=12) + np.sin(x[:, 0]) + 0.1 * rng.normal(size=len(x))
    dtype = torch.get_default_dtype()
    dataset = TensorDataset(torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, shuffle=False)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = ((model(xb).squeeze(1) - yb) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.5f} lr {scheduler.get_last_lr()[0]:.2e}")
    if rank == 0:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
