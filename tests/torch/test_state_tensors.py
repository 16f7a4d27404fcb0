"""State that is not plain dense memory of a common dtype: it is broadcast correctly, or all ranks raise one error."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


def of_rank(kind, rank):
    ones = torch.ones(4) * (rank + 1)
    return {
        "expanded": lambda: (torch.eye(3) * (rank + 1)).expand(4, 3, 3),
        "expanded scalar": lambda: torch.tensor(float(rank)).expand(6),
        "windows": lambda: (torch.arange(8.0) * (rank + 1)).unfold(0, 4, 2),
        "expanded complex": lambda: torch.complex(ones, -ones).expand(2, 4),
        "transposed": lambda: (torch.arange(6.0) * (rank + 1)).view(2, 3).t(),
        "coo": lambda: (torch.eye(3) * (rank + 1)).to_sparse(),
        "csr": lambda: (torch.eye(3) * (rank + 1)).to_sparse_csr(),
        "complex": lambda: torch.complex(ones, -ones),
        "conjugate": lambda: torch.complex(ones, -ones).conj(),
        "complex scalar": lambda: torch.tensor(complex(rank, 1)),
        "uint32": lambda: torch.tensor([rank + 5, 2**32 - 1 - rank], dtype=torch.uint32),
        "uint64": lambda: torch.tensor([rank + 5], dtype=torch.uint64),
        "float8": lambda: ones.to(torch.float8_e4m3fn),
        "nothing": lambda: torch.empty(0, 3, dtype=torch.complex64),
    }[kind]()


ARRIVES = ("expanded", "expanded scalar", "windows", "expanded complex", "transposed", "coo", "csr", "complex")
ARRIVES += ("conjugate", "complex scalar", "uint32", "uint64", "float8", "nothing")


def dense(tensor):
    tensor = tensor.to_dense()
    return (tensor.double() if tensor.dtype.itemsize == 1 or not tensor.is_complex() else tensor).tolist()


@on_ranks(2)
def test_parameters():
    for kind in ARRIVES:
        net = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(net.weight, hvd.rank())
        net.register_buffer("odd", of_rank(kind, hvd.rank()))
        hvd.broadcast_parameters(net.state_dict(), root_rank=1)
        assert net.weight[0, 0] == 1, kind
        assert dense(net.odd) == dense(of_rank(kind, 1)), kind


@on_ranks(2)
def test_optimizer_state():
    for kind in ARRIVES:
        for here in (True, False):  # True if this rank has such a state
            p = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([p], lr=0.1)
            if here or hvd.rank() == 1:
                optimizer.state[p]["odd"] = of_rank(kind, hvd.rank())
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            assert dense(optimizer.state[p]["odd"]) == dense(of_rank(kind, 1)), kind


def quantized():
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)


@on_ranks(2)
def test_all_ranks_raise_one_error():
    rank = hvd.rank()
    one_entry = torch.eye(3) * torch.tensor([1.0, 0, 0])
    wrong = {
        r"rank 1.*'odd' must not be quantized": torch.ones(4) if rank == 0 else quantized(),
        r"rank 1.*'odd' must be .*device meta": torch.ones(4, device="meta" if rank else "cpu"),
        r"'odd' is sparse_coo.*on rank 0.*on rank 1": (torch.eye(3) if rank else one_entry).to_sparse(),
        r"'odd' is .*on rank 0 and strided complex64.*on rank 1": torch.ones(4, dtype=torch.cfloat if rank else None),
    }
    for text, tensor in wrong.items():
        weight = torch.full((2,), float(rank))
        with pytest.raises(ValueError, match=text):
            hvd.broadcast_parameters({"odd": tensor, "weight": weight}, root_rank=0)
        assert weight.tolist() == [rank, rank]
    with pytest.raises(ValueError, match=r"rank 1: params must be .*, got a int"):
        hvd.broadcast_parameters({} if rank == 0 else 3, root_rank=0)
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    if rank == 0:
        optimizer.state[p]["moment"] = quantized()
    with pytest.raises(ValueError, match=r"rank 0: state of parameter 0\['moment'\] must not be quantized"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
