"""Utilities of the launcher for argument checks, Linux system calls, signals and errors."""
