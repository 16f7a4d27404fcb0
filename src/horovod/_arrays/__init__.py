"""Collectives on NumPy arrays, shared by several frontends.

``collectives``: blocking and asynchronous calls, for single arrays and groups. ``checks``: argument checks of both.
``handles``: operations in flight, also as futures.
"""
