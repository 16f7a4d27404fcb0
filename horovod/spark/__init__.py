"""Horovod on Apache Spark."""
