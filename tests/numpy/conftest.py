"""Fixtures of the NumPy tests."""

from tests.single import fixture

single = fixture("horovod.numpy")
