"""Benchmark peer that uses Horovod's TensorFlow frontend, with Keras 2 if TF_USE_LEGACY_KERAS is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_cases import OPS

import horovod.tensorflow as hvd

from .keras_models import compile_for, data, fit, gradients, keras_module, network


class Peer:
    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self._keras = keras_module(2 if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else 3)
        version = getattr(self._keras, "__version__", "2")
        self.about = f"horovod {__import__('horovod').__version__}, tensorflow {tf.__version__}, Keras {version}"
        self.stop = hvd.shutdown
        one = tf.ones(1)
        assert float(hvd.allreduce(one, op=hvd.Sum, name="check")[0]) == hvd.size()
        self.barrier = lambda: hvd.allreduce(one, op=hvd.Sum, name="barrier").numpy()

    def prepare(self, case: Any, mode: str) -> Callable[[], object]:
        if mode == "fit":
            return self._fit(case)
        if case.kind == "resnet":
            return self._gradients(case.shapes, mode)
        value, op = tf.ones(case.bytes // 4), tf.identity if mode == "identity" else hvd.allreduce
        if case.kind == "eager":
            return lambda: [op(value, name="eager") for _ in range(OPS)]

        def independent(x: tf.Tensor) -> tf.Tensor:
            return tf.add_n([op(x + float(i), name=f"independent.{i}") for i in range(OPS)])

        def chained(x: tf.Tensor) -> tf.Tensor:
            for i in range(OPS):
                x = op(x, name=f"chained.{i}")
            return x

        function = tf.function({"independent": independent, "chained": chained}[case.kind], autograph=False)
        return lambda: function(value).numpy()

    def _gradients(self, shapes: list[tuple[int, ...]], mode: str) -> Callable[[], object]:
        values = gradients(shapes)
        if mode == "grouped":
            step = tf.function(lambda *given: hvd.grouped_allreduce(list(given)), autograph=False)
        else:
            # Measure the function that DistributedGradientTape and the optimizers call internally.
            from horovod.tensorflow.reduction import make_allreduce_grads

            reduce = make_allreduce_grads("Benchmark")
            variables = [tf.Variable(tf.zeros(value.shape)) for value in values]
            step = tf.function(lambda *given: reduce(list(given), variables), autograph=False)
        return lambda: step(*values)[-1].numpy()

    def _fit(self, case: Any) -> Callable[[], object]:
        import horovod.tensorflow.keras as hvd_keras

        keras = self._keras
        model = network(keras, case.kind)
        compile_for(keras, model, hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)))
        batches = data(case.bytes)
        return lambda: fit(model, batches)
