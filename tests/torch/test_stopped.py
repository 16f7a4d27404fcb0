"""A process that is stopped (SIGSTOP, a debugger) answers nothing: another rank says what waits. All go on later."""

import pytest


def meet_a_stopped_rank(stopped):
    import os
    import signal
    import time

    import torch

    import horovod.torch as hvd
    from horovod import _core
    from horovod.common.wiring.engine_start import make_sink

    pids = hvd.allgather_object(os.getpid())
    for _ in range(12):  # a step that repeats: nothing is negotiated any more
        hvd.allreduce(torch.ones(3), name="step")
    told = []
    if hvd.rank() == stopped:
        time.sleep(1.5)  # stopped meanwhile
    else:
        _core.set_log_sink(lambda level, text: told.append(text))
        os.kill(pids[stopped], signal.SIGSTOP)
    try:
        handle = hvd.allreduce_async(torch.ones(3), name="other", op=hvd.Sum)
        deadline = time.monotonic() + 40
        while hvd.rank() != stopped and not told and time.monotonic() < deadline:
            hvd.poll(handle)
            time.sleep(0.05)
    finally:
        if hvd.rank() != stopped:
            os.kill(pids[stopped], signal.SIGCONT)
            _core.set_log_sink(make_sink(hvd.rank(), False))
    return hvd.synchronize(handle).tolist(), "\n".join(told)


@pytest.mark.parametrize(
    ("stopped", "transport"),
    [(1, "auto"), *(pytest.param(rank, "tcp", marks=pytest.mark.heavy) for rank in (0, 1))],
)
def test_a_stopped_process_is_told_of(pool, stopped, transport):
    results = pool(2, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_TRANSPORT=transport).run(
        meet_a_stopped_rank, stopped
    )
    assert [values for values, _ in results] == [[2.0] * 3] * 2
    told = results[1 - stopped][1]
    assert "other" in told
    assert "stopped?" in told or f"missing on rank {stopped}" in told
