"""Optimizer that shards its state over the ranks (ZeRO stage 1)."""
