"""Key-value store of a job, through which workers find each other: a server in the launcher, a client in each worker.

It uses ZeroMQ with CURVE. The key pairs of both sides are derived from the job key, so a client proves that it belongs
to the job before the server reads any of its messages, and all traffic is encrypted. Messages are typed and limited in
size (``messages``); nothing is unpickled.
"""

from horovod.common.store.client import StoreClient, StoreError, StoreTimeout
from horovod.common.store.messages import MAX_VALUE_BYTES
from horovod.common.store.server import StoreServer

__all__ = ["MAX_VALUE_BYTES", "StoreClient", "StoreError", "StoreServer", "StoreTimeout"]
