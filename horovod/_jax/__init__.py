"""Collectives on JAX's arrays, for Keras on JAX: outside of compiled programs (``arrays``) and within (``calls``).

Not a face: programs that use JAX without Keras have none yet, and ``import horovod.jax`` says so.
"""
