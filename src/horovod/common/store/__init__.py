"""Key-value store through which a job's workers find each other: a server in the launcher, a client in each worker.

The store uses ZeroMQ with CURVE. Both sides derive their key pairs from the job key. A client thereby proves that it
belongs to the job before the server reads any of its messages, and all traffic is encrypted. Messages are typed,
limited in size (``messages``) and never unpickled.
"""

from horovod.common.store.client import StoreClient, StoreError, StoreTimeout
from horovod.common.store.messages import MAX_VALUE_BYTES
from horovod.common.store.server import StoreServer

__all__ = ["MAX_VALUE_BYTES", "StoreClient", "StoreError", "StoreServer", "StoreTimeout"]
