"""Collectives on NumPy arrays, shared by several frontends.

``collectives`` has blocking and asynchronous operations on single arrays and groups. ``checks`` validates their
arguments. ``handles`` has the futures of operations in flight.
"""
