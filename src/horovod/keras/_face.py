"""The Keras frontend of this process, created once for ``horovod.keras`` and its callbacks."""

from horovod._keras.api import make_callbacks, make_functions, open_face

face = open_face()
functions = make_functions(face)
classes = make_callbacks(face)
