"""Additional params of PyTorch estimators and models. Pure."""

from horovod.spark.common import checks
from horovod.spark.common.param_table import Row

TORCH = (
    Row("loss_constructors", "a function that returns the loss, or a list of one for each label, in place of loss"),
    Row("input_shapes", "shape of each feature, with -1 for the rows: [[-1, 1, 28, 28]]", None, checks.shapes),
    Row("train_minibatch_fn", "a function that takes a step, in place of ours", None, checks.function),
)
TORCH_MODEL = (
    Row("input_shapes", "shape of each feature, with -1 for the rows", None, checks.shapes),
    Row("optimizer", "the optimizer, with its state"),
    Row("loss", "the loss, or a list of one for each label"),
    Row("loss_constructors", "a function that returns the loss, or a list of one for each label"),
)
