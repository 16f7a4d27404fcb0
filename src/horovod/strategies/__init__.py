"""Training strategies that communicate less often, or with fewer ranks, than synchronous data parallelism.

``horovod.torch`` exports the strategies as ``LocalSGD``, ``DiLoCo``, ``Gossip`` and ``ParameterServer``. For NumPy
arrays, they are in ``strategies.arrays``. docs/strategies.md compares them.

The modules ``rounds``, ``gossip`` and ``serving`` communicate, and ``rules`` does not.
"""

from horovod.strategies.rules import OuterSGD

__all__ = ["OuterSGD"]
