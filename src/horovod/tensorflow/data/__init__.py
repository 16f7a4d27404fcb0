"""Data loading for TensorFlow that runs preprocessing in separate processes (docs/data-service.md)."""
