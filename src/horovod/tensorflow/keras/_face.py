"""The Keras frontend of this process on TensorFlow, created once for ``horovod.tensorflow.keras`` and its callbacks."""

from horovod._keras.api import make_callbacks, make_functions, open_face

face = open_face(only="tensorflow")
functions = make_functions(face)
classes = make_callbacks(face)
