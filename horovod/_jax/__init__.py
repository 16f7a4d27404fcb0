"""Collectives within programs that JAX compiles (``calls``), for ``horovod.jax`` and Keras on JAX; not a face."""
