"""Definitions shared by launcher and workers; the launcher may import them."""
