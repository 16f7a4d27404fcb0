"""Collectives in programs compiled by JAX (``calls``), for ``horovod.jax`` and for Keras on JAX."""
