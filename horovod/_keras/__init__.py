"""What horovod.keras and horovod.tensorflow.keras have in common. Nothing here imports a framework when it is imported:
the faces hand over the Keras in use and the adapter of its backend (``backend.py``)."""
