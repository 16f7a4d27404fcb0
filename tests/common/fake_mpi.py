"""The parts of mpi4py's module that Horovod uses, without MPI; communicators are lists of ranks of MPI.COMM_WORLD."""

UNDEFINED = -32766
SINGLE, MULTIPLE = 0, 3


class Group:
    """A group of process numbers."""

    def __init__(self, members):
        self._members = members
        self.freed = False

    def Get_size(self):
        return len(self._members)

    def Translate_ranks(self, ranks, other):
        members = other._members
        return [members.index(self._members[r]) if self._members[r] in members else UNDEFINED for r in ranks]

    def Free(self):
        assert not self.freed
        self.freed = True


class Comm:
    """A communicator. ``members``: process numbers, None for MPI.COMM_NULL."""

    parent = None

    def __init__(self, members=None, inter=False):
        self._members = members
        self._inter = inter

    def __eq__(self, other):
        return self._members is other._members

    __hash__ = None

    @classmethod
    def Get_parent(cls):
        return Comm() if cls.parent is None else cls.parent

    def Is_inter(self):
        assert self._members is not None, "an error of MPI"
        return self._inter

    def Get_group(self):
        return Group(self._members)


Comm.__module__ = "mpi4py.MPI"


class Intracomm(Comm):
    """An ordinary communicator."""


class World(Intracomm):
    """MPI.COMM_WORLD."""

    def __init__(self, rank, size):
        super().__init__(list(range(size)))
        self._rank = rank

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return len(self._members)


class Module:
    """mpi4py.MPI in the process of ``rank``."""

    UNDEFINED = UNDEFINED
    THREAD_MULTIPLE = MULTIPLE
    Group = Group

    def __init__(self, rank, size):
        self.COMM_WORLD = World(rank, size)
        self.COMM_NULL = Comm()
        self.Comm = type("Comm", (Comm,), {})
        self.state = "at work"
        self.threads = MULTIPLE

    def comm(self, *members):
        """Return a communicator."""
        return Intracomm(list(members))

    def Is_initialized(self):
        return self.state != "not begun"

    def Is_finalized(self):
        return self.state == "over"

    def Query_thread(self):
        return self.threads

    def get_vendor(self):
        return "Open MPI", (5, 0, 11)
