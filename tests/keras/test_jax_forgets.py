"""State left by a failed step on JAX, and the next fit."""

from types import SimpleNamespace

import pytest

pytest.importorskip("jax")
jax_training = pytest.importorskip("horovod._keras.backend_jax")


class Spoilt:
    """A result of a step in which a collective failed."""

    def is_ready(self):
        return True

    def block_until_ready(self):
        raise ValueError("rank 1 was lost")


def test_another_fit_does_not_raise_what_became_of_the_one_before():
    results = [{"loss": Spoilt()}, {}]

    class Model:
        train_function = None

        def make_train_function(self):
            if self.train_function is None:
                self.train_function = lambda state, iterator: (results.pop(0), state)

        def jax_state_sync(self):
            return None

    jax_training.watch(SimpleNamespace(Model=Model), lambda optimizer: True)
    model = Model()
    model.make_train_function()
    model.train_function("state", None)
    with pytest.raises(ValueError, match="rank 1 was lost"):
        model.train_function("state", None)
    model.make_train_function()
    assert model.train_function("state", None) == ({}, "state")
