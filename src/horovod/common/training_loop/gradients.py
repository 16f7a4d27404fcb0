"""Argument checks and error messages for gradient reduction, shared by all frontends.

A frontend passes the functions that access its tensors and variables. All checks raise a ValueError that names the
argument, its value and the accepted values.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

from horovod.common.contract.log import warn_user
from horovod.common.frontends import Job
from horovod.common.ops import Average, op_name
from horovod.common.process_sets import ProcessSet
from horovod.common.util import split_list

_T = TypeVar("_T")


class BucketSizes(NamedTuple):
    """Bucket size limits in bytes, which determine how gradients are grouped."""

    bucket: int = 4 << 20
    """Maximum size of a bucket. A larger gradient gets a separate bucket."""
    small: int = 256 << 10
    """Maximum size of a gradient that shares a bucket by default.

    A bucket saves the overhead of an operation per gradient, but costs a copy. For large gradients the copy costs more.
    """

    @property
    def first(self) -> int:
        """Maximum size of the first bucket in bytes. Smaller than other buckets, so that it is sent early."""
        return self.bucket // 4


class BucketTuning:
    """Bucket sizes requested by autotune on rank 0 and adopted by all ranks of a process set."""

    __slots__ = ("requested", "used")

    def __init__(self) -> None:
        self.used = False
        """True if some gradients share buckets of the default sizes, so that the sizes can be tuned."""
        self.requested: BucketSizes | None = None
        """Requested sizes, or None to leave the sizes unchanged."""


bucket_tuning = BucketTuning()


def anybody_else(process_set: ProcessSet, job: Job) -> bool:
    """Return True if gradients must be reduced with other ranks.

    Returns False on a rank outside the set. Also returns False on the set's only rank, unless the job is elastic.
    """
    return bool(process_set.included()) and (len(process_set.ranks or ()) > 1 or job.elastic)


def overwritten(variable: Any) -> bool:
    """Return True if a Keras variable's "gradient" is actually its next value.

    This applies to the scales and amax histories of float8 training. They are maxima, so they are reduced with Max.
    """
    return getattr(variable, "overwrite_with_gradient", False) is True


def check_passes(passes: Any) -> int:
    """Check ``backward_passes_per_step`` and return it as an int."""
    if isinstance(passes, bool) or not isinstance(passes, Integral) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be an integer above 0, got {passes!r}")
    return int(passes)


def check_predivide(factor: Any, op: int) -> float:
    """Check ``gradient_predivide_factor`` and return it as a float.

    Raises:
        ValueError: If the factor is not finite or not above 0, or not 1 although ``op`` is not Average.
    """
    if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 < float(factor) < math.inf:
        raise ValueError(f"gradient_predivide_factor must be a finite number above 0, got {factor!r}")
    if factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor must be 1.0 unless op is Average, got {factor} with op={op_name(op)}"
        )
    return float(factor)


def scales(predivide: float) -> tuple[float, float]:
    """Return (prescale, postscale) for a ``gradient_predivide_factor`` f.

    With n ranks, gradients are divided by f before the sum and by n / f after the sum. Average already divides by n.
    """
    return 1.0 / predivide, predivide


def check_groups(
    groups: Any,
    is_member: Callable[[Any], bool],
    key_of: Callable[[Any], Hashable],
    name_of: Callable[[Any], str],
    members: str = "variables",
) -> int | Sequence[Sequence[Any]] | None:
    """Check the argument ``groups`` of an optimizer, and return it.

    Args:
        groups: None, a number of groups, or lists of members without repetitions.
        is_member: Function that returns True for an object that can be in a group.
        key_of: Function that returns the identity of a member.
        name_of: Function that returns the name of a member for messages.
        members: Plural noun for the members in messages, for example "variables".

    Raises:
        ValueError: If ``groups`` has another type, or contains a member twice.
    """
    accepted = f"groups must be None, an integer of 0 or more, or a list of lists of {members}, got"
    if groups is None:
        return None
    if isinstance(groups, bool) or (isinstance(groups, Integral) and groups < 0):
        raise ValueError(f"{accepted} {groups!r}")
    if isinstance(groups, Integral):
        return int(groups)
    if not isinstance(groups, list | tuple):
        raise ValueError(f"{accepted} a {type(groups).__name__}")
    seen: set[Hashable] = set()
    for index, group in enumerate(groups):
        if not isinstance(group, list | tuple):
            raise ValueError(f"{accepted} a {type(group).__name__} as groups[{index}]")
        for one in group:
            if not is_member(one):
                raise ValueError(f"{accepted} a {type(one).__name__} in groups[{index}]")
            if key_of(one) in seen:
                raise ValueError(
                    f"groups must contain each of the {members} at most once, got {name_of(one)} again in "
                    f"groups[{index}]"
                )
            seen.add(key_of(one))
    return groups


def groups_of(num_groups: Any, groups: Any) -> Any:
    """Return ``groups``, or the value of the deprecated ``num_groups`` if ``groups`` is None."""
    if isinstance(num_groups, bool) or not isinstance(num_groups, Integral) or num_groups < 0:
        raise ValueError(f"num_groups must be an integer of 0 or more, got {num_groups!r}")
    if num_groups == 0:
        return groups
    warn_user("the argument num_groups is deprecated, use groups", DeprecationWarning)
    return int(num_groups) if groups is None else groups


def parts(items: Sequence[_T], count: int) -> list[list[_T]]:
    """Split ``items`` into at most ``count`` non-empty groups, keeping the order."""
    return [list(part) for part in split_list(items, max(1, min(count, len(items)))) if part]
