"""Train a Keras classifier on the digits of scikit-learn with callbacks."""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=1400)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--save", default="digits.keras")
args = parser.parse_args()

keras.utils.set_random_seed(3)
keras.backend.set_floatx(args.dtype)

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(args.dtype)
x_train, y_train = x[: args.samples], y[: args.samples]
x_val, y_val = x[1400:], y[1400:]

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10, activation="softmax")]
)
model.compile(
    optimizer=keras.optimizers.SGD(learning_rate=0.05, momentum=0.9),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
callbacks = [
    keras.callbacks.ModelCheckpoint(args.save, monitor="val_loss", save_best_only=True),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=2),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
]
history = model.fit(
    x_train,
    y_train,
    batch_size=args.batch_size,
    epochs=args.epochs,
    shuffle=args.shuffle,
    validation_data=(x_val, y_val),
    callbacks=callbacks,
    verbose=2,
)
print("best validation loss", min(history.history["val_loss"]))
loss, accuracy = model.evaluate(x_val, y_val, verbose=0)
print(f"validation loss {loss:.10f}, accuracy {accuracy:.4f}")
model.save_weights(args.save.replace(".keras", ".weights.h5"))
np.savez(args.save + ".npz", *model.get_weights())
