"""Tests of horovod.jax."""
