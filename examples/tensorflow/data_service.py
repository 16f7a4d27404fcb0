"""Move slow preprocessing to separate processes with tf.data's data service.

    horovodrun -np 2 python -m horovod.tensorflow.data.compute_worker compute.json &    # the data workers
    horovodrun -np 2 python examples/tensorflow/data_service.py compute.json            # the training
    horovodrun -np 2 python examples/tensorflow/data_service.py                         # the same without them

Without data workers, training waits for the preprocessing of each batch. With data workers on other cores or hosts, it
only waits for finished batches.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "configfile", nargs="?", help="of the data service; none: everything in the training's own processes"
)
parser.add_argument("--samples", type=int, default=512)
parser.add_argument("--effort", type=int, default=200, help="how slow the preprocessing of a sample is")
parser.add_argument("--epochs", type=int, default=2)
arguments = parser.parse_args()

hvd.init()


def slow(x, y):
    """Simulate slow decoding and augmentation."""
    noise = tf.zeros(8)
    for _ in tf.range(arguments.effort):
        noise = tf.sin(noise + x) * 0.1
    return x + 0.01 * noise, y


points = np.random.RandomState(1).randn(arguments.samples, 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((points, points @ np.arange(8, dtype="float32")))
if arguments.configfile:
    config = TfDataServiceConfig.read(arguments.configfile, wait_for_file_creation=True)
    # All ranks share each pass over the dataset, and each batch goes to the first rank that asks for one. The number of
    # batches can therefore differ between ranks.
    dataset = dataset.map(slow).batch(16).send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True)
else:
    dataset = dataset.shard(hvd.size(), hvd.rank()).map(slow).batch(16)

weights = tf.Variable(tf.zeros(8))
optimizer = tf.keras.optimizers.SGD(0.05)
for epoch in range(arguments.epochs):
    begin, steps, loss = time.perf_counter(), 0, tf.constant(0.0)
    for x, y in dataset:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        steps += 1
    # Wait for ranks that have more batches.
    hvd.join()
    hvd.broadcast_variables([weights], root_rank=0)
    steps = sum(hvd.allgather_object(steps))
    if hvd.rank() == 0:
        print(
            f"epoch {epoch}: {steps} steps in {time.perf_counter() - begin:.1f} s, loss {float(loss):.4f}", flush=True
        )
if arguments.configfile and hvd.rank() == 0:
    config.compute_client().shutdown()
