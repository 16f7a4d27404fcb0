"""The wheels that a release consists of: `make wheels`, or `python -m tools.wheels --help`; see docs/releasing.md."""
