"""Broadcasts of variables and objects from the root in eager mode, functions and sessions."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow

V1 = tf.compat.v1
DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool, tf.uint32, tf.uint64]


def start(rank, i):
    return np.arange(6).reshape(2, 3) + 10 * rank + i


def within_a_function(variables, root):
    @tf.function
    def step():
        hvd.broadcast_variables(variables, root)
        return variables[-1] + 0.0  # read after the write

    assert step().numpy() == root


@pytest.mark.heavy
@on_tensorflow(3)
def test_eager_variables():
    def fresh():
        variables = [tf.Variable(tf.cast(start(hvd.rank(), i), dtype)) for i, dtype in enumerate(DTYPES)]
        return [*variables, tf.Variable(float(hvd.rank()))]

    def check(variables, root):
        for i, (variable, dtype) in enumerate(zip(variables, DTYPES, strict=False)):
            assert np.array_equal(variable.numpy(), tf.cast(start(root, i), dtype).numpy())
        assert variables[-1].numpy() == root

    for root in range(hvd.size()):
        for inplace in (False, True):
            variables = fresh()
            hvd.broadcast_variables(variables, root, inplace=inplace)
            check(variables, root)
        variables = fresh()
        hvd.broadcast_(variables, root, name="mine")
        check(variables, root)
        variables = fresh()
        within_a_function(variables, root)
        check(variables, root)
    hvd.broadcast_variables([], 0)
    assert hvd.broadcast_([], 0) == []
    # Ranks may have given their variables other names.
    if hvd.rank() == 0:
        tf.Variable(0.0, name="v")
    variable = tf.Variable([float(hvd.rank())], name=f"v{hvd.rank()}")
    hvd.broadcast_variables(iter([variable]), 1)
    assert variable.numpy().tolist() == [1.0]
    dense = tf.keras.layers.Dense(2)
    dense.build([None, 3])
    hvd.broadcast_variables(dense.variables, 1)
    kernels = hvd.allgather(tf.convert_to_tensor(dense.kernel)[tf.newaxis]).numpy()
    assert all(np.array_equal(kernels[0], kernel) for kernel in kernels)
    assert np.any(kernels[0])
    with pytest.raises(ValueError, match=r"complex.*not supported"):
        hvd.broadcast_variables([tf.Variable(1j, name="complex")], 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(hvd.size())):
        hvd.broadcast_variables([variable], hvd.size())
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def in_a_graph(use_resource):
    root = hvd.size() - 1
    with tf.Graph().as_default():
        variables = [
            V1.get_variable(f"v{i}", initializer=tf.cast(start(hvd.rank(), i), tf.float32), use_resource=use_resource)
            for i in range(40)
        ]
        whole = V1.get_variable("whole", initializer=tf.constant(hvd.rank()), use_resource=use_resource)
        scalar = V1.get_variable("scalar", initializer=float(hvd.rank()), use_resource=use_resource)
        broadcast = hvd.broadcast_global_variables(root)
        some = hvd.broadcast_([variables[0], scalar], 0)
        with V1.Session() as session:
            session.run([v.initializer for v in [*variables, whole, scalar]])
            session.run(broadcast)
            for i, variable in enumerate(variables):
                assert np.array_equal(session.run(variable), start(root, i))
            assert session.run([whole, scalar]) == [root, root]
            session.run([scalar.initializer, variables[0].initializer])
            session.run(some)
            assert session.run(scalar) == 0.0
            assert np.array_equal(session.run(variables[0]), start(0, 0))


def refusals(use_resource):
    with tf.Graph().as_default():

        def variable(name, value, resource=use_resource):
            return V1.get_variable(name, initializer=value, use_resource=resource)

        with tf.device("/cpu:0"):
            here, whole, other = variable("here", 1.0), variable("whole", 1), variable("other", 1.0, not use_resource)
        with tf.device("/cpu:1"):
            away = variable("away", 1.0)
        with pytest.raises(ValueError, match=r"resource.*reference"):
            hvd.broadcast_([here, other], 0)
        with pytest.raises(ValueError, match=r"(?i)cpu:0.*cpu:1"):
            hvd.broadcast_([here, away], 0)
        if use_resource:
            hvd.broadcast_([here, whole], 0)
        else:
            with pytest.raises(ValueError, match=r"float32.*int32"):
                hvd.broadcast_([here, whole], 0)


def with_broadcast_hook(folder, use_resource):
    """New variables, and variables that only the root restored, take the root's values on all ranks."""
    checkpoints = folder if hvd.rank() == 0 else None
    for attempt in range(2):
        with tf.Graph().as_default():
            weight = V1.get_variable("weight", initializer=[1.0 + hvd.rank()], use_resource=use_resource)
            step = V1.train.get_or_create_global_step()
            bump = tf.group(V1.assign_add(step, 1), V1.assign_add(weight, [10.0]))
            hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
            with V1.train.MonitoredTrainingSession(checkpoint_dir=checkpoints, hooks=[hook]) as session:
                before = session.run([step, weight])
                session.run(bump)
            assert before[0] == attempt
            assert before[1].tolist() == [1.0 + 10.0 * attempt]
    # One hook may serve several graphs.
    with tf.Graph().as_default():
        weight = V1.get_variable("weight", initializer=float(hvd.rank()), use_resource=use_resource)
        hook.begin()
        with V1.Session() as session:
            session.run(V1.global_variables_initializer())
            hook.after_create_session(session, None)
            assert session.run(weight) == 0.0


@pytest.mark.heavy
def test_variables_in_sessions(tf_pool, tmp_path):
    for use_resource in (True, False):
        tf_pool(2).run(in_a_graph, use_resource)
        tf_pool(2).run(refusals, use_resource)
        tf_pool(2).run(with_broadcast_hook, str(tmp_path / f"resource-{use_resource}"), use_resource)


@on_tensorflow(3)
def test_objects():
    rank, size = hvd.rank(), hvd.size()
    own = {"rank": rank, "list": list(range(1000 * rank)), "array": np.arange(rank + 1)}

    def is_of(received, root):
        return received["rank"] == root and received["array"].tolist() == list(range(root + 1))

    assert is_of(hvd.broadcast_object(own), 0)
    assert is_of(hvd.broadcast_object(own if rank == 1 else None, 1, name="o"), 1)
    assert [o["rank"] for o in hvd.allgather_object(own)] == list(range(size))
    assert hvd.allgather_object(rank if rank else "text", name="o") == ["text", *range(1, size)]
    send = hvd.broadcast_object_fn(1)
    assert is_of(send(own), 1)
    with tf.Graph().as_default(), V1.Session() as session:
        assert is_of(hvd.broadcast_object(own, 1, session=session), 1)
        assert is_of(hvd.broadcast_object_fn(0, session, "graph")(own), 0)
        assert len(hvd.allgather_object(own, session)) == size


def test_references(single):
    a, b, c = (tf.Variable(float(i)) for i in range(3))
    references = hvd.vars_to_refs([a, [b, c]])
    assert {references: "usable as a key"}[hvd.vars_to_refs([a, [b, c]])]
    first, (second, third) = hvd.refs_to_vars(references)
    assert first is a
    assert second is b
    assert third is c
    assert hvd.refs_to_vars(refs=hvd.vars_to_refs(vars=[a])) == [a]
