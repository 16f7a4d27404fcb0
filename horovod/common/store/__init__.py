"""The job's key-value store, where workers find one another: a server in the launcher, a client in each worker.

ZeroMQ with CURVE: both sides' key pairs are derived from the job key, so a client proves to belong to the job before
the server looks at anything it says, and everything is encrypted. Messages are typed and limited (``messages``);
nothing is unpickled.
"""

from horovod.common.store.client import StoreClient, StoreError, StoreTimeout
from horovod.common.store.messages import MAX_VALUE_BYTES
from horovod.common.store.server import StoreServer

__all__ = ["MAX_VALUE_BYTES", "StoreClient", "StoreError", "StoreServer", "StoreTimeout"]
