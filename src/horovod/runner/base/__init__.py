"""Launcher utilities: argument checks, Linux system calls, signals and errors."""
