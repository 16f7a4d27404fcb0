"""What the elastic job of test_data_workers.py runs: passes of a dataset that a data service prepares, until SIGUSR1.

`python elastic_data.py CONFIGFILE`: rank 0 prints a line for each pass: how many ranks, and how many elements they had.
"""

import sys
import time

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig

ELEMENTS = 40
hvd.init()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)


@hvd.elastic.run
def train(state):
    dataset = tf.data.Dataset.range(ELEMENTS).map(lambda number: number * number)
    served = dataset.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True)
    while not hvd.should_stop():
        mine = []
        for number in served:
            mine.append(int(number))
            time.sleep(0.01)
        # Ranks had unequal numbers of elements, all of them each once.
        every = sorted(number for numbers in hvd.allgather_object(mine) for number in numbers)
        assert every == [number * number for number in range(ELEMENTS)], every
        state.passes += 1
        state.commit()
        if hvd.rank() == 0:
            print(f"pass {state.passes} by {hvd.size()} ranks", flush=True)


train(hvd.elastic.ObjectState(passes=0))
if hvd.rank() == 0:
    with config.compute_client() as client:
        client.shutdown()
