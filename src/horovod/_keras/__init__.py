"""Common parts of horovod.keras and horovod.tensorflow.keras.

Importing this package imports no framework. The frontends pass in the Keras module and the adapter of its backend
(``backend.py``).
"""
