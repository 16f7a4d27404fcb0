"""TensorFlow data loading with preprocessing in separate processes (docs/data-service.md)."""
