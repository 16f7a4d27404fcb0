"""Training strategies that communicate less often, or with fewer ranks, than synchronous data parallelism.

``horovod.torch`` exports them as ``LocalSGD``, ``DiLoCo``, ``Gossip`` and ``ParameterServer``; ``strategies.arrays``
has them for NumPy arrays. docs/strategies.md compares them.

``rounds``, ``gossip`` and ``serving`` communicate; ``rules`` does not.
"""

from horovod.strategies.rules import OuterSGD

__all__ = ["OuterSGD"]
