"""Model whose backward pass costs almost nothing, so that a training step measures communication."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _ReadyGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros((), requires_grad=True)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        # In each step, create a new alias of the memory, so that autograd uses it as param.grad without copying.
        return (None, *(gradient.detach() for gradient in ctx.gradients))


class GradientsOnly(nn.Module):
    """Module with parameters of the given shapes, whose backward pass returns precomputed gradients."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        # Write ones first, so that all pages are allocated.
        self.gradients = [torch.ones(shape).zero_() for shape in shapes]

    def forward(self, _: None) -> Tensor:
        return _ReadyGradients.apply(self.gradients, *self.weights)

    def drop_gradients(self) -> None:
        for weight in self.weights:
            weight.grad = None
