"""Modules for use in the workers, each of which has its own Keras backend."""

from tests.later import Later

keras = Later("keras")
hvd = Later("horovod.keras")
models = Later("tests.keras.models")
