"""The elastic state of horovod.jax, and errors of compiled programs as the elastic loop sees them."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from horovod.common import frontends  # noqa: E402
from horovod.common.frontends import Job  # noqa: E402
from horovod.data import StreamingDataset  # noqa: E402
from horovod.jax import elastic  # noqa: E402
from tests.ranks import on_jax  # noqa: E402


@on_jax(2)
def test_states_are_restored_and_synchronized():
    rank = hvd.rank()
    state = hvd.elastic.JaxState(params={"w": jnp.full(3, float(rank))}, step=rank)
    state.sync()
    together = np.asarray(state.params["w"]).tolist(), state.step
    update = jax.jit(lambda p: {"w": p["w"] + 1}, donate_argnums=0)
    state.params, state.step = update(state.params), 5
    state.save()
    state.params, state.step = update(state.params), 6
    update(state.params)  # donated: its buffers are deleted
    state.restore()
    assert (hvd.elastic.batch(9).local, hvd.elastic.batch(9).shares.of) == (5 - rank, (5, 4))
    assert (together, np.asarray(state.params["w"]).tolist(), state.step) == (([0.0] * 3, 0), [1.0] * 3, 5)


@on_jax(2)
def test_failed_programs_rerun_from_the_last_commit():
    rank, turns = hvd.rank(), []
    add = jax.jit(lambda x: x + hvd.allreduce(jnp.ones(2), name="add", op=hvd.Sum))
    wrong = jax.jit(lambda x: hvd.allreduce(jnp.ones(2 + rank), name="wrong")[:2] + x)
    state = hvd.elastic.JaxState(params=jnp.zeros(2), step=0)

    @hvd.elastic.run
    def train(state):
        turns.append(state.step)
        while state.step < 3:
            state.params, state.step = add(state.params), state.step + 1
            if len(turns) == 1 and state.step == 2:
                jax.block_until_ready(wrong(state.params))
            state.commit()
        return np.asarray(state.params).tolist()

    assert (train(state), turns) == ([6.0, 6.0], [0, 1])


def test_no_program_outlives_its_epoch(monkeypatch):
    """Even if rank and size are unchanged, because programs contain ids of process sets, and roots."""
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    monkeypatch.setattr(elastic.basics, "shutdown", lambda: None)
    first, second = (Job(0, 2, 0, 2, 0, 1, True, True) for _ in "12")
    monkeypatch.setattr(frontends.JAX, "job", first)
    for job, times in ((first, 0), (second, 1)):
        monkeypatch.setattr(elastic.basics, "init", lambda job=job: setattr(frontends.JAX, "job", job))
        elastic._reset()
        assert len(cleared) == times


def test_streams_are_restored_with_the_state(jax_pool):
    def work():
        from tests.data.sources import Numbers, resumed

        stream = StreamingDataset(Numbers([10, 11, 9]), 4, seed=1)
        state = hvd.elastic.JaxState(total=jnp.zeros(()), data=stream)
        add = jax.jit(lambda x: hvd.allreduce(x, name="total", op=hvd.Sum))
        return resumed(state, add)

    (first, *same), (second, *rest) = jax_pool(2).run(work)
    assert sorted(first + second) == list(range(30))
    assert same == rest == [sum(range(30)), 30]
