"""One set of cases for all faces but Keras 2's: each operation, in each form that a face has it, with each dtype,
shape, reduction but Adasum and process set, and what each face has to say of wrong use.

``cases`` (pure) says which there are, ``reference`` what has to come out. A face has an adapter in ``adapters``, which
``running`` takes on every rank of a job. ``test_conformance`` runs them, a part in ``make test``;
``python -m tests.conformance`` runs all and writes the matrix, docs/faces.md.

MXNet has an environment of its own and no column in the matrix: ``tests/mxnet/test_conformance.py`` runs its cases.

To add a face: an adapter, a line in ``adapters.ALL``.
"""
