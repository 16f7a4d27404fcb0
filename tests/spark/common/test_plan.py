"""Assignment of GPUs to ranks."""

import pytest

from horovod.spark.common.plan import gpu_number, own_gpu

# Assignment of GPUs to ranks.


@pytest.mark.parametrize(
    ("assigned", "visible", "count", "local_rank", "number"),
    [
        ([], None, 4, 3, 3),
        ([], None, 2, 3, 1),
        (["2"], None, 4, 0, 2),
        (["1", "3"], None, 4, 0, 1),
        (["3"], "1,3", 2, 0, 1),
        (["0"], "1, 0", 2, 0, 1),
        (["1"], "5,6", 2, 0, 1),  # renumbered in a container
        (["GPU-b"], "GPU-a,GPU-b", 2, 0, 1),
    ],
)
def test_the_gpu_is_assigned_by_spark_or_by_local_rank(assigned, visible, count, local_rank, number):
    assert gpu_number(assigned, visible, count, local_rank) == number


@pytest.mark.parametrize("address", ["4", "GPU-c"])
def test_undetected_gpus_are_named(address):
    with pytest.raises(ValueError, match=f"Spark has given GPU '{address}' to this task, which sees 2 GPUs"):
        gpu_number([address], "0,1", 2, 0)


def test_gpus_assigned_by_spark_are_in_the_environment(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HOROVOD_SPARK_DEVICES", "3")
    assert own_gpu(4, 0) == 3
    monkeypatch.delenv("HOROVOD_SPARK_DEVICES")
    assert own_gpu(4, 1) == 1
