"""Builds the wheels of a release; see docs/releasing.md and `python -m tools.wheels --help`."""
