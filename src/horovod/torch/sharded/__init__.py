"""ShardedOptimizer: each rank keeps the optimizer state of its part of every parameter (ZeRO stage 1)."""
