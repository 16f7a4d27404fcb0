"""Elastic states and callbacks of Keras, in fit."""

from unittest import mock

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3, on_keras_on_tensorflow


@pytest.mark.heavy
@on_keras3(2)
def test_ranks_are_synchronized():
    import copy

    me = hvd.rank()
    with pytest.raises(ValueError, match=r"has no variables yet, .*; call model.build\(input_shape\)"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    model = models.model(seed=me)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * (me + 1))), loss="mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=me)
    state.sync()
    assert state.epoch == 0
    assert (hvd.elastic.batch(9).local, hvd.elastic.batch(9).shares.of) == (5 - me, (5, 4))
    hvd.check_in_sync(model)
    before = models.weights(model)
    saved = copy.deepcopy(state._saved_values), dict(state._saved_state)
    x, y = models.data(16)
    model.fit(models.shard(x, 4), models.shard(y, 4), batch_size=4, verbose=0)
    assert any((a != b).any() for a, b in zip(models.weights(model), before, strict=True))
    state_dict = state.state_dict()
    assert all((a == b).all() for a, b in zip(state_dict["variables"], models.weights(model), strict=False))
    state.load_state_dict({**state_dict, "epoch": 4})
    state.load_state_dict({**state_dict, "variables": state._saved_values, "epoch": 3})
    assert state.epoch == 3
    kept = [np.array(one) for one in state._saved_values]
    for variable in model.trainable_variables:
        variable.assign_add(variable * 0 + 1)
    for one, was in zip(state._saved_values, kept, strict=True):
        assert (np.array(one) == was).all(), "a commit stays as it is"
    if keras.backend.backend() == "tensorflow":
        with mock.patch("horovod._keras.elastic._array", side_effect=AssertionError("a copy")):
            state.save()
    state._saved_values, state._saved_state = saved
    state.epoch = 5
    state.restore()
    assert all((a == b).all() for a, b in zip(models.weights(model), before, strict=True))
    assert (state.epoch, int(np.array(model.optimizer.iterations))) == (0, 0)
    assert all(not np.array(v).any() for v in model.optimizer.variables[2:]), "moments too"


@on_keras_on_tensorflow(1)
def test_callbacks_keep_the_state_up_to_date():
    model = models.model()
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", run_eagerly=True)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen = []
    state.commit = lambda: seen.append((state.epoch, state.batch))
    elastic = hvd.elastic
    callbacks = [
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    x, y = models.data(20)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    epoch = [(0, 2), (0, 4), (1, 0)]
    assert seen == [*epoch, (1, 1), (1, 3), (1, 5), (2, 0)], seen
    # An interrupted epoch continues: three of its batches are done.
    for options in ({"epochs": 1}, {"epochs": 3, "initial_epoch": 2}):
        state.epoch, state.batch = 2, 3
        seen.clear()
        model.fit(x, y, batch_size=4, steps_per_epoch=2, verbose=0, callbacks=callbacks, **options)
        assert seen == [(2, 5), (3, 0)], seen
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="batches_per_commit must be"):
            elastic.CommitStateCallback(state, wrong)


@on_keras_on_tensorflow(2)
def test_fit_iterates_over_a_dataset():
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    elastic = hvd.elastic
    data = elastic.ElasticDataset(models.data(22), batch_size=4)
    state = elastic.KerasState(model, data=data)
    seen = []
    state.commit = lambda: seen.append((data.epoch, data.processed_num))
    callbacks = [elastic.UpdateDatasetCallback(data), elastic.CommitStateCallback(state)]
    while data.epoch < 2:
        model.fit(iter(data), steps_per_epoch=len(data), verbose=0, callbacks=callbacks)
    assert list(dict.fromkeys(seen)) == [(0, 8), (0, 16), (1, 0), (1, 8), (1, 16), (2, 0)], seen


@on_keras_on_tensorflow(1)
def test_several_batches_may_be_one_call():
    import types

    elastic = hvd.elastic
    # By Keras version: the batch numbers at the beginning and end of each call, as the model reports them.
    for calls, together in (
        ([(0, 2), (3, 5), (6, 8), (9, 11)], 3),
        ([(0, 0), (3, 3), (6, 6), (9, 9)], 3),
        ([(0, 2), (3, 5), (6, 8), (9, 9)], None),
        ([(number, number) for number in range(10)], 1),
    ):
        data = elastic.ElasticDataset(40, batch_size=4)
        state = elastic.KerasState.__new__(elastic.KerasState)
        commits = []
        state.batch, state.commit = 0, lambda commits=commits, data=data: commits.append(data.processed_num)
        callbacks = [
            elastic.UpdateDatasetCallback(data),
            elastic.UpdateBatchStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=5),
        ]
        for one in callbacks:
            one.set_model(types.SimpleNamespace(steps_per_execution=together))
            one.set_params({"steps": 10})
            one.on_train_begin()
        for begin, end in calls:
            assert data.epoch == 0
            for one in callbacks:
                one.on_train_batch_begin(begin)
            for one in callbacks:
                one.on_train_batch_end(end)
        assert (data.epoch, state.batch, len(commits)) == (1, 10, 2 if together == 1 else 1), calls


def test_another_rank_may_be_lost_during_sync():
    from horovod._keras.elastic import make_run
    from horovod.common.exceptions import HorovodInternalError

    class LostError(Exception):
        """The framework's own error."""

    def convert_errors(func):
        def translated(*args):
            try:
                return func(*args)
            except LostError as error:
                raise HorovodInternalError(str(error)) from error

        return translated

    frontend = mock.Mock()
    frontend.adapter.convert_errors = convert_errors
    state = mock.Mock()
    state.sync.side_effect = [LostError, None]
    func = mock.Mock(__name__="train", return_value=7)
    assert make_run(frontend)(func)(state) == 7
    assert (state.restore.call_count, func.call_count, frontend.adapter.shutdown.call_count) == (1, 1, 1)


@pytest.mark.heavy
@on_keras3(3, initialized=False, HOROVOD_ELASTIC="1", fresh=True)
def test_compiled_functions_follow_the_number_of_ranks():
    from functools import partial

    from horovod._keras.api import open_frontend
    from horovod.common.exceptions import HorovodInternalError

    hvd.init()
    me = hvd.rank()
    model = models.model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(model.trainable_variables[-1])  # added last: its gradient is 1
    model.compile(optimizer=optimizer, loss=lambda y, predicted: predicted + 0 * y)
    model.build((None, models.FEATURES))
    x, y = models.data(4)
    moved = []

    def train(state):
        before = models.weights(model)[-1]
        model.fit(x, y, batch_size=4, verbose=0)
        moved.append(float((before - models.weights(model)[-1])[0]))
        if len(moved) == 1:
            raise HorovodInternalError("rank 2 was lost")

    begin = open_frontend().adapter.basics.init
    with mock.patch.object(open_frontend().adapter.basics, "init", partial(begin, [[0, 1], [0, 1], [2]][me])):
        hvd.elastic.run(train)(mock.Mock())
    np.testing.assert_allclose(moved, [1 / 3, 1 / 2 if me < 2 else 1], rtol=1e-6)


def loses_a_rank_within_passes(fails_in):
    """Two passes are a step of SGD with rate 1, from 0; rank 1 leaves between those of step 2."""
    from functools import partial

    from horovod._keras.api import open_frontend

    hvd.init()
    world = hvd.rank()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    weight = model.trainable_variables[0]
    weight.assign(np.zeros((1, 1)))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    state = hvd.elastic.KerasState(model, optimizer, step=0)

    def train(state):
        while state.step < 4:
            state.commit()
            for number in range(2):
                if hvd.size() == 2 and state.step == 2 and number == 1:
                    if world == 1:
                        hvd.shutdown()
                        return None
                    if fails_in == "metric":
                        hvd.allreduce(np.ones(1), name="metric")
                optimizer.apply([keras.ops.full((1, 1), 10.0 * state.step + number)], [weight])
                assert state._in_a_step() is (number == 0)
            state.step += 1
        return float(keras.ops.convert_to_numpy(weight)[0, 0])

    begin = open_frontend().adapter.basics.init
    with mock.patch.object(open_frontend().adapter.basics, "init", partial(begin, [0])):
        result = hvd.elastic.run(train)(state)
    hvd.shutdown()
    return result


@pytest.mark.parametrize("fails_in", ["metric", "gradients"])
def test_a_failed_cycle_of_passes_is_restarted(stateful, fails_in):
    expected = -sum(10.0 * step + number for step in range(4) for number in range(2))
    found = stateful(2, initialized=False, HOROVOD_ELASTIC="1").run(loses_a_rank_within_passes, fails_in)
    assert found == [expected, None]
