"""Mutation testing: `python -m tools.mutants`; see README.md."""
