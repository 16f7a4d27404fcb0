"""Identity of the peer of a Unix socket."""

import os
import socket

from horovod.common.contract import unix_peer


def test_the_kernel_says_who_it_is():
    mine, theirs = socket.socketpair(socket.AF_UNIX)
    with mine, theirs:
        assert unix_peer.credentials(mine) == (os.getpid(), os.geteuid(), os.getegid())
        assert unix_peer.user(theirs) == os.geteuid()
