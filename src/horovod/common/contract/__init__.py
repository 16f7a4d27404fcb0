"""Definitions that launcher and workers share. Launcher code can import this package."""
