"""Definitions shared by launcher and workers; launcher code may import this package."""
