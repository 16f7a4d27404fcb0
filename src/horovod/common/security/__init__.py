"""Authentication and encryption of connections."""
