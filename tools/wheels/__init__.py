"""Builder of a release's wheels: `make wheels` or `python -m tools.wheels --help`; see docs/releasing.md."""
