"""Utilities of the launcher: argument checks, Linux system calls, signals, errors."""
