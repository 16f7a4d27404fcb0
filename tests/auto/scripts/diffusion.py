"""Train a small diffusion model on two moons, with a moving average of the weights."""

import argparse
import copy

import torch
import torch.nn as nn
from sklearn.datasets import make_moons
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=32)
p.add_argument("--epochs", type=int, default=2)
p.add_argument("--limit", type=int, default=1600)
p.add_argument("--save", default="diffusion.pt")
args = p.parse_args()

torch.manual_seed(0)
T = 50
betas = torch.linspace(1e-4, 0.02, T)
alphas_bar = torch.cumprod(1 - betas, dim=0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 16)
        self.net = nn.Sequential(nn.Linear(18, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=1))


points, _ = make_moons(1600, noise=0.05, random_state=0)
points = torch.as_tensor(points, dtype=torch.get_default_dtype())
loader = DataLoader(TensorDataset(points[: args.limit]), batch_size=args.batch_size, shuffle=True, drop_last=True)
model = Denoiser()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(args.epochs):
    losses = []
    for (x0,) in loader:
        t = torch.randint(0, T, (x0.shape[0],))
        noise = torch.randn_like(x0)
        a = alphas_bar[t].unsqueeze(1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = nn.functional.mse_loss(model(xt, t), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for e, w in zip(ema.parameters(), model.parameters(), strict=True):
                e.mul_(0.99).add_(w, alpha=0.01)
        losses.append(loss.item())
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.6f}")


@torch.no_grad()
def sample(n):
    x = torch.randn(n, 2)
    for i in reversed(range(T)):
        t = torch.full((n,), i)
        eps = ema(x, t)
        x = (x - betas[i] / (1 - alphas_bar[i]).sqrt() * eps) / (1 - betas[i]).sqrt()
        if i:
            x = x + betas[i].sqrt() * torch.randn_like(x)
    return x


print("samples", sample(64).mean(0).tolist())
torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, args.save)
