"""Data loaders for custom training loops."""
