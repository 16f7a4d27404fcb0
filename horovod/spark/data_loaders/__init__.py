"""Loaders of batches for training loops of programs' own."""
