"""Train a generator and a discriminator on the digits of scikit-learn, each with its own Adam."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--max-steps", type=int, default=0)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--save", default="gan.pt")
opt = parser.parse_args()

torch.manual_seed(42)
torch.set_default_dtype(getattr(torch, opt.dtype))
nz = 16

images = torch.tensor(load_digits().data / 8 - 1, dtype=torch.get_default_dtype())
dataloader = DataLoader(TensorDataset(images), batch_size=opt.batch_size, shuffle=True)

netG = nn.Sequential(nn.Linear(nz, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
netD = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(8, nz)

steps = 0
for epoch in range(opt.epochs):
    for i, (real,) in enumerate(dataloader):
        n = real.size(0)

        # (1) Update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        errD_real = criterion(netD(real), torch.ones(n, 1))
        errD_real.backward()
        noise = torch.randn(n, nz)
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), torch.zeros(n, 1))
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G: maximize log(D(G(z)))
        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(n, 1))
        errG.backward()
        optimizerG.step()

        steps += 1
        if i % 10 == 0:
            errD = errD_real + errD_fake
            print(f"[{epoch}/{opt.epochs}][{i}/{len(dataloader)}] D {errD.item():.4f} G {errG.item():.4f}")
        if steps == opt.max_steps:
            break
    with torch.no_grad():
        print("mean of samples:", netG(fixed_noise).mean().item())
    if steps == opt.max_steps:
        break

with open(opt.save, "wb") as f:
    torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, f)
