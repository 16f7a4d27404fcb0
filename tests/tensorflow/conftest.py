"""Fixtures of the TensorFlow tests."""

from tests.single import fixture

single = fixture("horovod.tensorflow")
