"""Collectives on NumPy arrays, shared by several frontends.

``collectives``: blocking calls. ``starting``: asynchronous calls, for single arrays and groups. ``checks``: argument
checks of both. ``pending``: operations in flight. ``handles``: operations in flight as futures.
"""
