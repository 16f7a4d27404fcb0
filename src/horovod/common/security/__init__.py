"""Authentication of connections, and their encryption."""
