"""Tensors on a simulated GPU; scripts/gpu-check.sh shows what needs a real one."""

import threading

import pytest
import torch

import horovod.torch as hvd
from tests.gpu import test_operations as operations

pytestmark = pytest.mark.heavy

OPERATIONS = (
    (operations.every_dtype, [torch.float32, torch.bfloat16, torch.int64], [(), (0,), (4, 257)]),
    (operations.scaled,),
    (operations.gathers_and_scatters, [torch.bfloat16, torch.int64, torch.bool]),
    (operations.grouped,),
    (operations.compressed,),
    (operations.adasum,),
    (operations.steps,),
    (operations.joined,),
    (operations.mistakes,),
    (operations.parameters,),
)


@pytest.mark.parametrize("completion", ["1", pytest.param("0", marks=pytest.mark.heavy)])
def test_operations_same_as_on_a_real_gpu(gpu_ranks, completion):
    job = gpu_ranks(2, HOROVOD_ENABLE_ASYNC_COMPLETION=completion)
    for operation in OPERATIONS:
        job.run(*operation)


class FakeWork:
    """A launched Work; ``looked`` is called at each query whether the device has finished it."""

    def __init__(self, looked):
        self.looked = looked

    def wait(self, timeout):
        return True

    def order(self, stream):
        pass

    def done(self):
        return self.looked()

    def in_use(self):
        return not self.looked()


class FakeStreams:
    """Streams of which number 2 is the current one."""

    def current_stream(self, device):
        return 2

    def is_capturing(self, device):
        return False


def test_operations_on_another_stream_keep_their_memory():
    from horovod.torch.ops import devices

    def work(looked):
        return devices.DeviceWork(FakeWork(looked), FakeStreams(), torch.device("cuda", 0), 1, "tensors")

    over, threads = False, []

    def looked():  # at the first query, another thread starts waiting and queries as well
        if over and not threads:
            threads.append(threading.Thread(target=work(lambda: False).wait))
            threads[0].start()
            threads[0].join(0.3)
        return over

    first, second = work(looked), work(lambda: False)
    first.wait()
    second.wait()
    over = True
    try:
        work(lambda: True).wait()
        threads[0].join()
        assert second in devices._parked
        assert len(devices._parked) == 2
    finally:
        devices._parked.clear()


@pytest.mark.parametrize("place", ["wait", "order", "done"])
def test_failed_operations_keep_memory_in_use_by_the_device(monkeypatch, place):
    from horovod.torch.ops import devices

    class Job:
        waits_for_devices = place == "done"

    def fails(*_):
        raise hvd.HorovodInternalError("rank 1 was lost")

    launched = FakeWork(lambda: False)
    setattr(launched, place, fails)
    work = devices.DeviceWork(launched, FakeStreams(), torch.device("cuda", 0), 2, "tensors")
    launched.in_use = lambda: True
    monkeypatch.setattr(devices.frontend, "job", Job())
    try:
        with pytest.raises(hvd.HorovodInternalError, match="rank 1 was lost"):
            work.wait()
        assert devices._parked == [work]
    finally:
        devices._parked.clear()


def test_waiting_for_the_device_times_out(monkeypatch):
    from horovod.torch.ops import devices

    class Job:
        waits_for_devices = True

    done, ordered = False, []
    launched = FakeWork(lambda: done)
    launched.order = ordered.append
    work = devices.DeviceWork(launched, FakeStreams(), torch.device("cuda", 0), 2, "tensors")
    monkeypatch.setattr(devices.frontend, "job", Job())
    assert not work.wait(0)
    assert not work.wait(0.01)
    assert not ordered
    done = True
    assert work.wait(0)
    assert ordered == [2]
