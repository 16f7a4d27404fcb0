"""Train a convolutional network with batch normalization, a one-cycle schedule and early stopping."""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.tensor(self.x[i], dtype=torch.get_default_dtype())[None] / 16, int(self.y[i])


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=1400)
    parser.add_argument("--save", default="checkpoints/best.pt")
    args = parser.parse_args()
    torch.manual_seed(5)

    digits = load_digits()
    x_train, x_val, y_train, y_val = train_test_split(digits.images, digits.target, train_size=1400, random_state=0)
    train_loader = DataLoader(
        Digits(x_train[: args.limit], y_train[: args.limit]), args.batch_size, shuffle=True, num_workers=2
    )
    val_loader = DataLoader(Digits(x_val, y_val), args.batch_size, num_workers=2)
    print(f"training batches: {len(train_loader)}, validation batches: {len(val_loader)}")

    model = nn.Sequential(
        block(1, 8),
        block(8, 16),
        nn.MaxPool2d(2),
        block(16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, epochs=args.epochs, steps_per_epoch=len(train_loader)
    )
    folder = os.path.dirname(args.save)
    if folder and not os.path.isdir(folder):
        os.makedirs(folder)

    best_loss, patience = float("inf"), 0
    for epoch in range(args.epochs):
        model.train()
        running_loss = 0.0
        for x, y in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running_loss += loss.item() * x.size(0)
        epoch_loss = running_loss / len(train_loader.dataset)
        print(f"epoch {epoch}: train loss {epoch_loss:.4f}, val accuracy {accuracy(model, val_loader):.4f}")
        if epoch_loss < best_loss:
            best_loss, patience = epoch_loss, 0
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
        else:
            patience += 1
            if patience == 2:
                break
    print("best train loss", best_loss)


if __name__ == "__main__":
    main()
