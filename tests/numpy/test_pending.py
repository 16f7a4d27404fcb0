"""Memory of operations without a waiter."""

import threading

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod._arrays import handles


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(handles, "_parked", [])
    monkeypatch.setattr(handles, "_retained", [])


class Done:
    """Work that is complete when queried; ``act`` is called at the query."""

    def __init__(self, act):
        self._act = act

    def done(self):
        act, self._act = self._act, lambda: None
        act()
        return True


def test_two_threads_release_the_same_handles():
    def in_another_thread():
        thread = threading.Thread(target=handles._sweep)
        thread.start()
        thread.join(20)

    handles._parked += [([Done(in_another_thread)], np.ones(1)), ([Done(lambda: None)], np.ones(1))]
    handles._sweep()
    assert not handles._parked


@pytest.mark.parametrize("leaves", ["numpy", "torch"])
def test_interrupted_arrays_are_kept_while_another_frontend_runs(leaves):
    pytest.importorskip("torch")
    import horovod.torch as hvd_torch
    from horovod.torch.ops import handles as torch_handles

    frontend, other, home = (hvd, hvd_torch, handles) if leaves == "numpy" else (hvd_torch, hvd, torch_handles)
    kept = np.ones(1)
    frontend.init()
    other.init()
    try:
        home._retained.append(kept)
        frontend.shutdown()
        assert home._retained == [kept]
        frontend.init()
    finally:
        other.shutdown()
        frontend.shutdown()
    assert not home._retained
