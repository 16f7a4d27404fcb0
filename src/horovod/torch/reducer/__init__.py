"""Reduction of gradients over the ranks: readiness, buckets, and agreement between ranks.

``gradients`` coordinates the other modules for one optimizer. ``backward`` detects gradients that are ready. ``rounds``
and ``buckets`` decide which gradients are submitted together, and when. ``submissions`` submits them and stores the
results. ``agreement`` compares the ranks' gradients. docs/architecture/frontends.md describes a round.
"""
