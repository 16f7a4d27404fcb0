"""Ranks that use one GPU: the sentences about them. Pure; from what ranks tell of themselves."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Use(NamedTuple):
    """A rank and the GPU that it uses. Numbers of devices mean nothing between processes, so by UUID."""

    rank: int
    host: str
    uuid: str
    """Empty: it uses none, or none is known."""


def shared(uses: Iterable[Use]) -> dict[tuple[str, str], list[int]]:
    """(host, UUID) of each GPU that several ranks use, to these ranks."""
    users: dict[tuple[str, str], list[int]] = {}
    for use in uses:
        if use.uuid:
            users.setdefault((use.host, use.uuid), []).append(use.rank)
    return {gpu: sorted(ranks) for gpu, ranks in users.items() if len(ranks) > 1}


def warnings(uses: Sequence[Use], gpus_on_host: dict[str, int] | None = None) -> list[str]:
    """A sentence for each host on which ranks share GPUs. ``gpus_on_host``: how many GPUs each host has, where that is
    known; a host all of whose GPUs are in use is said to have too few, else the ranks probably did not mean it."""
    by_host: dict[str, list[tuple[str, list[int]]]] = {}
    for (host, uuid), ranks in shared(uses).items():
        by_host.setdefault(host, []).append((uuid, ranks))
    return [_sentence(host, found, uses, (gpus_on_host or {}).get(host, 0)) for host, found in by_host.items()]


def _sentence(host: str, found: list[tuple[str, list[int]]], uses: Sequence[Use], count: int) -> str:
    used = len({use.uuid for use in uses if use.host == host and use.uuid})
    (uuid, ranks), *others = found
    text = f"ranks {_ranks(ranks)} on host {host} use one GPU ({uuid})"
    if others:
        text += f", and so do the ranks of {len(others)} more"
    if count > used:
        text += f", though {host} has {count}: call torch.cuda.set_device(hvd.local_rank()) right after hvd.init()"
        text += ", or start with `horovodrun --gpus-per-worker 1`"
    elif count:
        text += (
            f", since {host} has no more than {count}: they take turns on it, and NCCL, which takes one rank a GPU, "
        )
        text += "is not used between them; start as many ranks as there are GPUs"
    else:
        text += (
            ": they take turns on it, and NCCL, which takes one rank a GPU, is not used between them. If that is not "
        )
        text += "meant, call torch.cuda.set_device(hvd.local_rank()) right after hvd.init(), or start with "
        text += "`horovodrun --gpus-per-worker 1`"
    return text


def _ranks(ranks: Sequence[int]) -> str:
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" if len(ranks) < 9 else f"{ranks[0]} ... {ranks[-1]}"
