"""Definitions shared by the launcher and the workers. Launcher code can import this package."""
