"""Train a functional Keras model with a validation split, class names and a learning rate scheduler."""

import argparse

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_wine

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--limit", type=int, default=178)
parser.add_argument("--save", default="wine.keras")
args = parser.parse_args()

keras.utils.set_random_seed(0)
x, y = load_wine(return_X_y=True)
order = np.random.permutation(len(x))[: args.limit]
x, y = ((x - x.mean(0)) / x.std(0))[order].astype(keras.config.floatx()), keras.utils.to_categorical(y[order])

inputs = keras.Input(shape=(13,))
h = layers.Dense(24, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-4))(inputs)
h = layers.concatenate([h, inputs])
outputs = layers.Dense(3)(h)
model = keras.Model(inputs, outputs)
model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.summary()
history = model.fit(
    x,
    y,
    batch_size=args.batch_size,
    epochs=args.epochs,
    validation_split=0.2,
    shuffle=False,
    callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.95)],
)
print("final", {k: v[-1] for k, v in history.history.items()})
model.save(args.save)
np.savez(args.save + ".npz", *model.get_weights())
