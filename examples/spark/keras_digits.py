"""Train a small Keras network on handwritten digits with KerasEstimator, in a Spark Pipeline that is saved and loaded.

    KERAS_BACKEND=torch python examples/spark/keras_digits.py
    spark-submit --master spark://host:7077 examples/spark/keras_digits.py --num-proc 4 --store hdfs://host:8020/digits

Ranks, and tasks that predict, use the same Keras backend as this program.
"""

from __future__ import annotations

import keras
from digits import accuracy, arguments, load, session, store_in
from pyspark.ml import Pipeline, PipelineModel

from horovod.spark.common.backend import LocalBackend, SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.keras import KerasEstimator


def main() -> None:
    args = arguments(__doc__)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            # The estimator reshapes the vectors of 64 numbers to this shape.
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    with session() as spark, store_in(args.store) as folder:
        train, test = load(spark)
        estimator = KerasEstimator(
            backend=LocalBackend(args.num_proc) if args.local else SparkBackend(args.num_proc),
            store=Store.create(folder),
            model=model,
            optimizer=keras.optimizers.Adam(5e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            feature_cols=["features"],
            label_cols=["label"],
            validation=0.1,
            batch_size=32,
            epochs=args.epochs,
            random_seed=1,
            verbose=2,
        )
        Pipeline(stages=[estimator]).fit(train).write().overwrite().save(f"{folder}/pipeline")
        fitted = PipelineModel.load(f"{folder}/pipeline")
        print(f"losses {[round(loss, 3) for loss in fitted.stages[0].getHistory()['loss']]}")
        print(f"held-out accuracy {accuracy(fitted.transform(test), 'label__output'):.3f} on {test.count()} images")


if __name__ == "__main__":
    main()
