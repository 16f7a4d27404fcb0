"""Collectives on NumPy arrays, below the faces that use them; not a face.

``collectives``: calls that wait. ``starting``: calls that do not, for single arrays and groups; ``checks``: what both
accept; ``pending``: operations under way; ``handles``: the same as futures.
"""
