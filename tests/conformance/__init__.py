"""One set of cases for all frontends except Keras 2's.

Cases are each operation, in each form that a frontend offers, with each dtype, shape, process set and reduction
except Adasum, and the errors that each frontend must raise for wrong use.

``cases`` (pure) lists them and ``reference`` computes the expected results. Each frontend has an adapter in
``adapters``, which ``running`` uses on every rank of a job. ``test_conformance`` runs the cases, some of them in
``make test``; ``python -m tests.conformance`` runs all and writes the matrix, docs/frontends.md.

MXNet has a separate environment and no column in the matrix: ``tests/mxnet/test_conformance.py`` runs its cases.

To add a frontend: write an adapter and add it to ``adapters.ALL``.
"""
