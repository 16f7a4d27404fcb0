"""Reduction of gradients over the ranks: readiness, buckets, and agreement between ranks.

``gradients`` coordinates the other modules for one optimizer, and submits complete buckets. ``backward`` detects
gradients that are ready. ``rounds`` decides which gradients can share buckets, and ``agreement`` plans the buckets and
compares the ranks' gradients. ``buckets`` holds their memory. ``submissions`` submits tensors and stores the results.
docs/architecture/frontends.md describes a round.
"""
