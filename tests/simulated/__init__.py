"""Simulated vendor libraries, for machines without a GPU."""
