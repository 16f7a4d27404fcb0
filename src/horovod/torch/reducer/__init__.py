"""Reduction of gradients: when they are ready, in which buckets they travel, and what the ranks agree on.

``gradients`` coordinates the others for an optimizer. ``backward`` notices gradients that are ready, ``rounds`` and
``buckets`` decide what is submitted together and when, ``submissions`` submits it and stores the results, and
``agreement`` compares the ranks' gradients. docs/architecture/frontends.md describes a round.
"""
