"""Losses of several outputs, with weights of outputs and of rows."""

import pytest

pytest.importorskip("torch")

import torch

from horovod.spark.torch import losses

OUT, LABEL = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0.0, 0.0, 1.0])
WEIGHTS = torch.tensor([1.0, 0.0, 2.0])


def mse(output, label, reduction="mean"):
    return torch.nn.functional.mse_loss(output, label, reduction=reduction)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: losses.make(torch.nn.MSELoss(), None, True),
        lambda: losses.make(mse, None, True),
        lambda: losses.make(None, lambda reduction="mean": torch.nn.MSELoss(reduction=reduction), True),
        lambda: losses.make(None, torch.nn.MSELoss, True),
        lambda: losses.make(lambda output, label: (output - label) ** 2, None, True),
    ],
)
def test_rows_have_weights(loss):
    # (1 - 0)^2 * 1, (2 - 0)^2 * 0, (3 - 1)^2 * 2, over 3 rows
    assert float(losses.total(loss(), None, [OUT], [LABEL], WEIGHTS)) == pytest.approx((1 + 0 + 8) / 3)


def test_outputs_have_weights_and_one_loss_is_for_all():
    own = torch.nn.MSELoss()
    loss = losses.make(own, None, False, 2)
    once = float(losses.total(loss[:1], None, [OUT], [LABEL], None))
    assert once == pytest.approx((1 + 4 + 4) / 3)
    both = losses.total(loss, [1.0, 3.0], [OUT, OUT], [LABEL, LABEL], None)
    assert float(both) == pytest.approx(4 * once)
    assert own.reduction == "mean"


def test_mismatches_are_named():
    loss = losses.make(lambda output, label: (output - label).square().mean(), None, True)
    with pytest.raises(
        ValueError, match=r"with sample_weight_col, loss 0 must have a reduction .*, got shape \(\) for 3 rows"
    ):
        losses.total(loss, None, [OUT], [LABEL], WEIGHTS)
    with pytest.raises(ValueError, match="loss must have one function, or one for each of 3 label_cols, got 2"):
        losses.make([torch.nn.MSELoss()] * 2, None, False, 3)
    with pytest.raises(ValueError, match="the model must have one output for each of 2 label_cols, got 1"):
        losses.total(loss, None, [OUT], [LABEL, LABEL], None)
