"""Failure attribution, which finds the rank that failed first and explains why.

Only the module `endings` keeps state.
"""
