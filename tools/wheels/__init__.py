"""Builder of a release's wheels; see docs/releasing.md and `python -m tools.wheels --help`."""
