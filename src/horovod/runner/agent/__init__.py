"""Launcher agent that runs on each host and starts, monitors and stops the workers there."""
