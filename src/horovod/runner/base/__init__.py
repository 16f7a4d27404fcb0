"""Launcher utilities for argument checks, Linux system calls, signals and errors."""
