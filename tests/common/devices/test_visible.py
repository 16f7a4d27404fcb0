"""Assignment of GPUs to workers."""

import pytest

from horovod.common.devices import visible
from horovod.common.devices.nvml import Gpu, Survey

TWO = Survey(gpus=[Gpu(0, uuid="GPU-aaaa-1"), Gpu(1, uuid="GPU-aabb-2")])
CUT = Survey(gpus=[Gpu(0, uuid="GPU-1", mig=True, slices=["MIG-x", "MIG-y"]), Gpu(1, uuid="GPU-2")])
NONE = Survey(reason="there is no driver")


@pytest.mark.parametrize(
    ("given", "survey", "found"),
    [
        (None, TWO, ["0", "1"]),
        (None, CUT, ["MIG-x", "MIG-y", "1"]),
        (None, NONE, []),
        ("1,0", TWO, ["1", "0"]),
        (" 1 , 0 ", TWO, ["1", "0"]),
        ("", TWO, []),
        ("-1", TWO, []),
        ("NoDevFiles", TWO, []),
        ("1,-1,0", TWO, ["1"]),
        ("0,7,1", TWO, ["0"]),  # CUDA stops at the first unknown index
        ("0,0", TWO, []),
        ("GPU-aabb,GPU-aaaa-1", TWO, ["GPU-aabb", "GPU-aaaa-1"]),
        ("GPU-aa", TWO, []),  # ambiguous
        ("GPU-zz", TWO, []),
        ("MIG-y", CUT, ["MIG-y"]),
        ("MIG-GPU-1/2/0", CUT, ["MIG-GPU-1/2/0"]),
        ("MIG-z", CUT, []),
        ("MIG-GPU-2/1/0", CUT, []),  # that GPU has no MIG instances
        ("NoDevFiles", NONE, []),
        ("0,5", NONE, ["0", "5"]),  # no information: accepted as given
    ],
)
def test_what_can_be_given(given, survey, found):
    environ = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert visible.choices(environ, survey)[0] == found


def test_each_worker_gets_its_own():
    four = Survey(gpus=[Gpu(index, uuid=f"GPU-{index}") for index in range(4)])
    pci = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible.cut({}, four, 2, 2) == [
        {"CUDA_VISIBLE_DEVICES": "0,1", **pci},
        {"CUDA_VISIBLE_DEVICES": "2,3", **pci},
    ]
    # An order chosen by the user is kept, and with it the meaning of the numbers in a list.
    assert visible.cut({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, four, 1, 1) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    given = {"CUDA_VISIBLE_DEVICES": "3,GPU-1,0"}
    assert visible.cut(given, four, 2, 1) == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in visible.cut({}, CUT, 3, 1)] == ["MIG-x", "MIG-y", "1"]


@pytest.mark.parametrize(
    ("environ", "survey", "workers", "each", "text"),
    [
        (
            {},
            TWO,
            3,
            1,
            "--gpus-per-worker 1 for 3 workers needs 3 GPUs on this host, where only 2 GPUs can be used (as NVIDIA's "
            "driver says); start fewer workers",
        ),
        ({}, NONE, 1, 1, "for 1 worker needs 1 GPU on this host, where no GPU can be used (there is no driver)"),
        (
            {"CUDA_VISIBLE_DEVICES": "0"},
            TWO,
            1,
            2,
            "needs 2 GPUs on this host, where only 1 GPU can be used (CUDA_VISIBLE_DEVICES there is '0')",
        ),
        ({}, CUT, 1, 2, "are cut into MIG devices, of which CUDA uses one in a process; --gpus-per-worker 1 gives"),
    ],
)
def test_too_few(environ, survey, workers, each, text):
    with pytest.raises(visible.VisibleError) as raised:
        visible.cut(environ, survey, workers, each)
    assert text in str(raised.value)


def test_the_gpus_of_each_worker():
    """Without --gpus-per-worker workers see all GPUs; the launcher's own list does not reach them."""
    one, other = TWO.gpus
    assert visible.of_workers({"CUDA_VISIBLE_DEVICES": "1,0"}, TWO, 3, 0) == [[one], [other], [one]]
    assert visible.of_workers({"CUDA_VISIBLE_DEVICES": "1,0"}, TWO, 2, 1) == [[other], [one]]
    assert visible.of_workers({}, TWO, 1, 2) == [[one, other]]
    assert visible.of_workers({}, CUT, 2, 1) == [[CUT.gpus[0]], [CUT.gpus[0]]]
    with pytest.raises(
        visible.VisibleError, match=r"needs a GPU on this host, where none can be used \(there is no dr"
    ):
        visible.of_workers({}, NONE, 1, 0)
    with pytest.raises(visible.VisibleError, match="does not tell of the GPUs here"):
        visible.of_workers({"CUDA_VISIBLE_DEVICES": "0"}, NONE, 1, 1)
