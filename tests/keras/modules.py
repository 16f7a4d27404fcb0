"""What the functions of these tests use in the workers, each of which has a backend of Keras of its own."""

from tests.later import Later

keras = Later("keras")
hvd = Later("horovod.keras")
models = Later("tests.keras.models")
