"""The class of a distributed optimizer, its arguments, and the arguments that it rejects."""

import importlib.util

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3, on_keras_on_tensorflow, on_keras_on_torch


@on_keras3(1)
def test_a_distributed_optimizer_equals_the_plain_one():
    for plain in (
        keras.optimizers.Adam(0.01, beta_1=0.8, name="mine", clipnorm=1.0),
        keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), momentum=0.5),
        keras.optimizers.AdamW(0.01),
    ):
        distributed = hvd.DistributedOptimizer(plain)
        assert isinstance(distributed, type(plain))
        assert type(distributed).__name__ == type(plain).__name__
        assert type(distributed).__module__ == type(plain).__module__
        assert distributed.get_config() == plain.get_config()
        assert distributed is not plain
        assert not hasattr(type(plain), "_HAS_AGGREGATE_GRAD"), "the plain class is as it was"
        assert distributed._HAS_AGGREGATE_GRAD
        assert distributed._agg_helper is None
        assert distributed._optimizer is plain
        actual, expected = (keras.saving.serialize_keras_object(o) for o in (distributed, plain))
        assert actual == expected

    # Attributes missing from the config are kept, too.
    excluding = keras.optimizers.AdamW(0.01)
    excluding.exclude_from_weight_decay(var_names=["bias"])
    distributed = hvd.DistributedOptimizer(excluding)
    assert distributed._exclude_from_weight_decay_pattern.pattern == "bias"

    # A schedule and an optimizer that cannot be created from a config.
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.25

    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(Schedule()))
    assert float(keras.ops.convert_to_numpy(distributed.learning_rate)) == 0.25
    model = models.model()
    model.compile(optimizer=distributed, loss="mse")
    model.fit(*models.data(8), verbose=0)


@pytest.mark.heavy
@on_keras3(3)
def test_arguments():
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))

    def updated(value=None, count=3, **options):
        """Return the negated update, with a rate of 1, of variables whose gradients are (rank + 1) * (1, 2, ...)."""
        variables = [keras.Variable(np.zeros((i + 1, 2), "float32"), name=f"v{i}") for i in range(count)]
        if callable(options.get("groups")):
            options["groups"] = options["groups"](variables)
        local = options.pop("local", ())
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for index in local:
            optimizer.register_local_var(variables[index])
        grads = [keras.ops.ones((i + 1, 2)) * (i + 1) * (rank + 1 if value is None else value) for i in range(count)]
        optimizer.apply(grads, variables)
        results = [-keras.ops.convert_to_numpy(v) for v in variables]
        for i, result in enumerate(results):
            assert (result == result[0, 0]).all()
            results[i] = float(result[0, 0]) / (i + 1)
        return results

    mean = total / size
    np.testing.assert_allclose(updated(), [mean] * 3)
    np.testing.assert_allclose(updated(op=hvd.Sum), [total] * 3)
    np.testing.assert_allclose(updated(gradient_predivide_factor=4.0), [mean] * 3)
    # Divided before they are summed: the sum is 1.5 times the largest float32.
    large = 1.5 * float(np.finfo(np.float32).max) / size
    np.testing.assert_allclose(updated(large, count=1), [np.inf])
    np.testing.assert_allclose(updated(large, count=1, gradient_predivide_factor=float(size)), [large], rtol=1e-6)
    np.testing.assert_allclose(updated(groups=2), [mean] * 3)
    numbers = {"gradient_predivide_factor": np.float32(2.0), "op": np.int64(hvd.Average), "groups": np.int64(2)}
    np.testing.assert_allclose(updated(**numbers, backward_passes_per_step=np.int64(1)), [mean] * 3)
    np.testing.assert_allclose(updated(groups=7), [mean] * 3)
    np.testing.assert_allclose(updated(groups=lambda v: [[v[2], v[0]]], op=hvd.Sum), [total] * 3)
    np.testing.assert_allclose(updated(compression=hvd.Compression.fp16), [mean] * 3)
    # Values are sent as float16: 1 + 2^-12 becomes 1.
    np.testing.assert_allclose(updated(1 + 2.0**-12, compression=hvd.Compression.fp16, count=1), [1.0], rtol=0)
    np.testing.assert_allclose(updated(local=[1]), [mean, (rank + 1) / size, mean])
    np.testing.assert_allclose(updated(local=[1], scale_local_gradients=False), [mean, rank + 1, mean])
    np.testing.assert_allclose(updated(local=[0, 1, 2], scale_local_gradients=False), [rank + 1] * 3)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        np.testing.assert_allclose(updated(num_groups=2), [mean] * 3)

    # A variable without gradient.
    import warnings

    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.apply([None, keras.ops.ones(2) * (rank + 1)], variables)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variables[0]), [1, 1])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variables[1]), [1 - mean] * 2)


@on_keras3(2)
def test_copies_and_pickles_are_distributed():
    import copy
    import pickle

    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))
    grads = [keras.ops.ones(2) * (rank + 1)]

    def check(optimizer, expected=total):
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer.apply(grads, [variable])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [-expected] * 2)

    ways = (copy.deepcopy, copy.copy, lambda optimizer: pickle.loads(pickle.dumps(optimizer)))
    for way in ways:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
        copied = way(optimizer)
        assert copied is not optimizer
        assert copied.get_config() == optimizer.get_config()
        check(copied)
        check(optimizer)
        # Objects that Keras itself creates from the class are plain, and so are copies of them.
        plain = type(optimizer).from_config(optimizer.get_config())
        check(way(plain), rank + 1)
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum, scale_local_gradients=False)
    optimizer.register_local_var(variable)
    copied = copy.deepcopy(optimizer)
    copied.apply(grads, [variable])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [-(rank + 1)] * 2)
    with pytest.raises(ValueError, match="local variables"):
        pickle.dumps(optimizer)


@pytest.mark.heavy  # two kinds of Keras in one process
@on_keras_on_torch(1)
@pytest.mark.skipif(not importlib.util.find_spec("tf_keras"), reason="tf_keras is not installed")
def test_an_optimizer_of_another_keras():
    import tf_keras

    with pytest.raises(ValueError, match=r"of keras [\d.]+ on torch, got a SGD of tf_keras [\d.]+ on tensorflow"):
        hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0))


@on_keras3(3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_process_set():
    pair = hvd.add_process_set([0, 2])
    rank = hvd.rank()
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=pair)
    optimizer.apply([keras.ops.ones(2) * (rank + 1)], [variable])
    expected = -2.0 if rank in (0, 2) else -(rank + 1.0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [expected] * 2)
    assert hvd.remove_process_set(pair)


@on_keras3(2)
def test_partial_distributed_optimizer():
    model = models.model()
    own, shared = model.layers
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = models.data(8, seed=hvd.rank())
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    from horovod.common.objects import allgather_object

    (a, b), (c, d) = allgather_object(([np.array(w) for w in own.get_weights()], models.weights(model)[2:]), "w")
    assert all((p != q).any() for p, q in zip(a, c, strict=True)), "local"
    for p, q in zip(b, d, strict=True):
        np.testing.assert_array_equal(p, q)
    assert shared.built
    with pytest.raises(ValueError, match=r"local_layers.*int"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[3])
    with pytest.raises(ValueError, match="no variables yet"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=keras.layers.Dense(2))


@on_keras3(1)
def test_refusals():
    def sgd():
        return keras.optimizers.SGD(0.1)

    v = keras.Variable(np.zeros(2, "float32"))
    for options, message in (
        ({"op": 3}, "op must be Average or Sum, got Min"),
        ({"op": hvd.Adasum}, "op must be Average or Sum, got Adasum"),
        ({"op": "sum"}, "op must be Average or Sum, got 'sum'"),
        (
            {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
            "gradient_predivide_factor must be .*, got 2.0 with op=Sum",
        ),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor must be .*, got 0"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be .*, got 0"),
        ({"groups": -1}, "groups must be .*, got -1"),
        ({"groups": "ab"}, "groups must be .*, got a str"),
        ({"groups": [3]}, r"groups must be .*, got a int as groups\[0\]"),
        ({"groups": [[3]]}, r"groups must be .*, got a int in groups\[0\]"),
        ({"groups": [[v], [v]]}, r"at most once.*groups\[1\]"),
        ({"num_groups": "x"}, "num_groups must be .*, got 'x'"),
        ({"process_set": 1}, "process_set must be a ProcessSet, got 1"),
        ({"compression": "fp16"}, r"compression must be Compression\.none, \.fp16.*, got 'fp16'"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(sgd(), **options)
    with pytest.raises(ValueError, match=r"compression must be .*, got 'fp16'"):
        hvd.allreduce(np.ones(2, "float32"), compression="fp16")
    with pytest.raises(ValueError, match="optimizer must be a Keras optimizer, got a str"):
        hvd.DistributedOptimizer("sgd")
    if keras.config.backend() == "jax":
        with pytest.raises(ValueError, match="gradient_accumulation_steps"):
            hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    with pytest.raises(RuntimeError, match="broadcast_global_variables"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(RuntimeError, match="op must be Average or Sum, got Min") as caught:
        hvd.reducescatter(np.ones(3), op=3)
    assert isinstance(caught.value, ValueError)


@on_keras3(1, initialized=False)
def test_before_init_and_after_shutdown():
    value = np.ones(2, "float32")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    calls = [hvd.rank, hvd.size, *(lambda f=f: f(value) for f in (hvd.allreduce, hvd.allgather, hvd.reducescatter))]
    calls += [lambda: hvd.broadcast(value, 0), lambda: optimizer.apply([keras.ops.ones(2)], [keras.Variable(value)])]
    for _ in ("before", "after"):
        for call in calls:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        hvd.init()
        hvd.shutdown()


@on_keras3(2)
def test_scalars_and_the_older_argument_of_allreduce():
    """Cases that the conformance suite lacks."""
    rank, size = hvd.rank(), hvd.size()
    np.testing.assert_allclose(float(hvd.allreduce(rank + 1.0)), (size + 1) / 2)
    with pytest.warns(DeprecationWarning, match="average"):
        summed = hvd.allreduce(np.full((3, 2), rank + 1, "float32"), average=False)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(summed), size * (size + 1) / 2)
    assert hvd.is_homogeneous()


@on_keras3(2)
def test_ranks_that_disagree():
    """Ranks with different gradients all get an error, and then continue."""
    rank = hvd.rank()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = keras.Variable(np.zeros(2 + rank, "float32"))
    with pytest.raises(Exception, match=r"(?s)shape|dimension|extent"):
        optimizer.apply([keras.ops.ones(2 + rank)], [variable])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), 0)
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([keras.ops.ones(2)], [variable])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), -1)


@on_keras_on_tensorflow(2)
def test_xla():
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile"):
        model.fit(*models.data(8), verbose=0)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    assert model.jit_compile is False
    model.fit(*models.data(8), verbose=0)
    # With a GPU, "auto" would mean XLA.
    from unittest import mock

    import tensorflow as tf

    gpu = mock.Mock(device_type="GPU")
    with mock.patch.object(tf.config, "list_physical_devices", return_value=[gpu]):
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        assert model.jit_compile is True
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        assert model.jit_compile is False
