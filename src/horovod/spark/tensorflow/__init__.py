"""TensorFlow's data service on Spark (docs/data-service.md)."""
