"""Collectives in programs that JAX compiles, for ``horovod.jax`` and for Keras on JAX."""
