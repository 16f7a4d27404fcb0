"""The programs for JAX in docs, and the example, run as they stand there."""

import pytest

from tests.documents import programs

pytest.importorskip("jax")
pytest.importorskip("optax")

BEFORE = """
import jax.numpy as jnp
images, labels = jnp.ones((8, 6)), jnp.arange(8) % 3
"""
PROGRAMS = programs("jax")
assert set(PROGRAMS) == {"four lines", "elastic"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(jax_pool, name):
    text = PROGRAMS[name].text

    def work():
        import horovod.jax as hvd

        space = {"__name__": "__main__"}
        exec(compile(BEFORE + text, name, "exec"), space)
        held = space["params"] if name == "four lines" else space["state"].params
        return hvd.check_in_sync(held), float(held["w"].sum())

    first, second = jax_pool(2).run(work)
    assert first == second
    assert first[1] != 0
