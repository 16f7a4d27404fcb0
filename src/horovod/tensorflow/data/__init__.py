"""Data loading for TensorFlow with preprocessing in separate processes (docs/data-service.md)."""
