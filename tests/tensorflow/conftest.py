"""Fixtures of these tests."""

from tests.single import fixture

single = fixture("horovod.tensorflow")
