"""Mutation testing: `python -m tools.mutants`; README.md tells the rest."""
