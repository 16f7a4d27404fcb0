"""Failure attribution, which finds the rank that failed first and explains why. Only `endings` has state."""
