"""Complete training steps of real networks, from the forward pass to the optimizer step.

Each peer provides `wrap(module, optimizer)`, which returns its versions of the module and the optimizer. All steps use
the same data, so that loading data is not measured.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Wrap = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]

# Characters per window, as in examples/pytorch/char_gpt.py.
CONTEXT = 64


def example(name: str) -> ModuleType:
    """Import an example of this repository as a module."""
    path = Path(__file__).resolve().parents[2] / "examples" / "pytorch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Residual(nn.Module):
    """Block of a ResNet: convolutions, given as (channels, size, stride), with a shortcut (He et al. 2015)."""

    def __init__(self, inputs: int, *convolutions: tuple[int, int, int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = inputs
        for outputs, size, stride in convolutions:
            layers += [
                nn.Conv2d(channels, outputs, size, stride, size // 2, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            channels = outputs
        self.inner = nn.Sequential(*layers[:-1])
        stride = max(stride for _, _, stride in convolutions)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Return ResNet-18 for 32 x 32 images and 10 classes, with 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for first in (stride, 1):
            layers.append(Residual(channels, (width, 3, first), (width, 3, 1)))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def resnet50() -> nn.Module:
    """Return ResNet-50 for 224 x 224 images and 1000 classes, with 25,557,032 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for first in (stride, *[1] * (blocks - 1)):
            layers.append(Residual(channels, (width, 1, 1), (width, 3, first), (4 * width, 1, 1)))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def step(kind: str, batch: int, wrap: Wrap) -> Callable[[], None]:
    """Return a training step of a network (a key of `cases.TRAINING`) with `batch` examples per rank."""
    torch.manual_seed(1)
    if kind in ("char_gpt", "gpt_10m"):
        gpt = example("char_gpt")
        model: nn.Module = gpt.GPT(*((4, 128, 4) if kind == "char_gpt" else (6, 384, 6)))
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        windows = torch.randint(0, len(gpt.VOCABULARY), (batch, CONTEXT + 1))
        loss = gpt.next_character_loss
    else:
        model = resnet18()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

        def loss(net: nn.Module, data: Tensor) -> Tensor:
            return F.cross_entropy(net(data), labels)

        windows = images
    model, optimizer = wrap(model, optimizer)

    def one() -> None:
        optimizer.zero_grad()
        loss(model, windows).backward()
        optimizer.step()

    return one
