"""Shared implementation of horovod.keras and horovod.tensorflow.keras.

Importing this package imports no framework. Each frontend passes in its Keras module and the adapter for that module's
backend (``backend.py``).
"""
