"""Failure attribution: which rank failed first and why. Pure, except for the state in `endings`."""
