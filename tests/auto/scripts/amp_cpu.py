"""Fit a regression on the diabetes data with automatic mixed precision on the CPU."""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


class Diabetes(Dataset):
    def __init__(self, dtype):
        x, y = load_diabetes(return_X_y=True)
        self.x = torch.tensor(x * 20, dtype=dtype)
        self.y = torch.tensor((y - y.mean()) / y.std(), dtype=dtype).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=None)
    parser.add_argument("--no-amp", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save", default="regression.pt")
    args = parser.parse_args()

    np.random.seed(0)
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    use_amp = not args.no_amp
    loader = DataLoader(Diabetes(dtype), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)

    model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 1)).to(dtype)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=use_amp, init_scale=2.0**10)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for batch in tqdm(loader, desc=f"epoch {epoch}"):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use_amp):
                loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
            step += 1
            if step == args.max_steps:
                break
        scheduler.step(total / len(loader))
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, scale {scaler.get_scale() if use_amp else 1}")
        if step == args.max_steps:
            break
    torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
