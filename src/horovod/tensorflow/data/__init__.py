"""Data for TensorFlow: ``compute_service``, preprocessing in separate processes (docs/data-service.md)."""
