"""The JAX programs in docs run unchanged."""

import pytest

from tests.documents import programs

pytest.importorskip("jax")
pytest.importorskip("optax")

BEFORE = """
import jax.numpy as jnp
images, labels = jnp.ones((8, 6)), jnp.arange(8) % 3
"""
PROGRAMS = programs("jax")
COMPLETE = ["a complete script, before", "a complete script, after"]
assert set(PROGRAMS) == {"four lines", "elastic", *COMPLETE}


@pytest.mark.parametrize("name", ["four lines", "elastic"])
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


@pytest.mark.heavy
def test_complete_scripts_train(jax_pool, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    before, after = (PROGRAMS[name].text for name in COMPLETE)
    space = {"__name__": "__main__"}
    exec(compile(before, "before.py", "exec"), space)
    assert space["loss"] < 0.5

    def work():
        import os

        import horovod.jax as hvd

        os.chdir(str(tmp_path))
        try:
            space = {"__name__": "__main__"}
            exec(compile(after, "after.py", "exec"), space)
        finally:
            os.chdir("/")
        return hvd.check_in_sync(space["params"]), float(space["loss"])

    first, second = jax_pool(2).run(work)
    assert first == second
    assert first[1] < 0.5
    assert (tmp_path / "model.npz").exists()
