"""Benchmark peer: tf.distribute.MultiWorkerMirroredStrategy, with TensorFlow's ring collectives over gRPC."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_cases import OPS

from .keras_models import compile_for, data, fit, gradients, keras_module, network

RING = tf.distribute.experimental.CommunicationImplementation.RING
PACKS = {"one pack": 0, "8 MiB packs": 8 << 20}


def options(bytes_per_pack: int = 0) -> tf.distribute.experimental.CommunicationOptions:
    return tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack, implementation=RING)


class Peer:
    def __init__(self) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options())
        self.rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        self.about = f"tensorflow {tf.__version__}, MultiWorkerMirroredStrategy (ring)"
        ones = tf.ones(1)
        self._sum = self._function(lambda x: self._reduce(tf.distribute.ReduceOp.SUM, x))
        assert float(self._sum(ones)[0]) == self._strategy.num_replicas_in_sync
        self.barrier = lambda: self._sum(ones).numpy()

    def stop(self) -> None:
        # Skip the normal exit, which would wait for other ranks that might already have exited.
        os._exit(0)

    def prepare(self, case: Any, mode: str) -> Callable[[], object]:
        if mode == "fit":
            return self._fit(case)
        average = tf.distribute.ReduceOp.MEAN
        if case.kind == "resnet":
            values = gradients(case.shapes)
            step = self._function(lambda *given: self._reduce(average, list(given), PACKS[mode]))
            return lambda: step(*values)[-1].numpy()
        value = tf.ones(case.bytes // 4)

        def independent(x: tf.Tensor) -> tf.Tensor:
            return tf.add_n([self._reduce(average, x + float(i)) for i in range(OPS)])

        def chained(x: tf.Tensor) -> tf.Tensor:
            for _ in range(OPS):
                x = self._reduce(average, x)
            return x

        function = self._function({"independent": independent, "chained": chained}[case.kind])
        return lambda: function(value).numpy()

    def _reduce(self, op: tf.distribute.ReduceOp, values: Any, bytes_per_pack: int = 0) -> Any:
        """Reduce values within a replica's function.

        tf.identity places the result on the required device without copying it.
        """
        placed = tf.nest.map_structure(tf.identity, values)
        return tf.distribute.get_replica_context().all_reduce(op, placed, options(bytes_per_pack))

    def _function(self, replica: Callable[..., Any]) -> Callable[..., Any]:
        return tf.function(lambda *given: self._strategy.run(replica, args=given), autograph=False)

    def _fit(self, case: Any) -> Callable[[], object]:
        keras = keras_module(2)
        with self._strategy.scope():
            model = network(keras, case.kind)
            compile_for(keras, model, keras.optimizers.SGD(0.01, momentum=0.9))
        # Multiply by the number of ranks, because the strategy divides each batch among the ranks.
        batches = data(case.bytes * self._strategy.num_replicas_in_sync)
        return lambda: fit(model, batches)
