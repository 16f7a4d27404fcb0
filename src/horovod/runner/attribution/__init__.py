"""Failure attribution: finds the rank that failed first and explains why. Only `endings` holds state."""
