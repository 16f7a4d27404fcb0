"""Identity of the peer of a Unix socket."""

import os
import socket

from horovod.common.contract import descriptors


def test_the_kernel_says_who_it_is():
    mine, theirs = socket.socketpair(socket.AF_UNIX)
    with mine, theirs:
        assert descriptors.peer_credentials(mine) == (os.getpid(), os.geteuid(), os.getegid())
        assert descriptors.peer_user(theirs) == os.geteuid()
