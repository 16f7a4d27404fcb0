"""Train a Wasserstein GAN with gradient penalty on points of a circle."""

import argparse
import math

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--limit", type=int, default=1600)
parser.add_argument("--save", default="wgan.pt")
args = parser.parse_args()
torch.manual_seed(9)

angle = torch.rand(1600) * 2 * math.pi
data = torch.stack([angle.cos(), angle.sin()], 1)[: args.limit]
loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.9))
one = torch.tensor(1.0)


def gradient_penalty(real, fake):
    eps = torch.rand(real.size(0), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grad = autograd.grad(D(mixed).sum(), mixed, create_graph=True)[0]
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()


for epoch in range(args.epochs):
    for i, real in enumerate(loader):
        z = torch.randn(real.size(0), 4)
        fake = G(z).detach()
        D.zero_grad()
        d_real = D(real).mean()
        d_real.backward(-one)
        d_fake = D(fake).mean()
        d_fake.backward(one)
        gp = 10 * gradient_penalty(real, fake)
        gp.backward()
        opt_d.step()
        if i % 3 == 0:
            for p in D.parameters():
                p.requires_grad = False
            G.zero_grad()
            g_loss = -D(G(torch.randn(real.size(0), 4))).mean()
            g_loss.backward()
            opt_g.step()
            for p in D.parameters():
                p.requires_grad = True
    print(f"epoch {epoch} W distance {(d_real - d_fake).item():.4f} penalty {gp.item():.4f}")
torch.save({"G": G.state_dict(), "D": D.state_dict()}, args.save)
