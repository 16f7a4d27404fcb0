"""Collectives in JAX-compiled programs, for ``horovod.jax`` and for Keras on JAX."""
