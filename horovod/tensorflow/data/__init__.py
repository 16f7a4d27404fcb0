"""Data for TensorFlow: ``compute_service``, preprocessing in processes of its own (docs/data-service.md)."""
