"""Keys that are not printed."""


class Secret(bytes):
    """Bytes that print as ``<secret of 32 bytes>``.

    Debuggers, notebooks and test runners show the variables of every frame of a traceback, and logs show what is put
    into them. A Secret equals, and is used like, the bytes that it holds; ``bytes(secret)`` returns them without this
    protection.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)
