"""Failure attribution, which finds the rank that failed first and explains why.

`endings` is the only module with state.
"""
