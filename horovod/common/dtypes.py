"""Element types: the numeric codes shared with the engine (core/base/dtype.h) and names for messages."""

UINT8 = 0
INT8 = 1
UINT16 = 2
INT16 = 3
INT32 = 4
INT64 = 5
FLOAT16 = 6
FLOAT32 = 7
FLOAT64 = 8
BOOL = 9
BFLOAT16 = 10

NAMES: tuple[str, ...] = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "bfloat16",
)
"""Name by code."""

CODES: dict[str, int] = {name: code for code, name in enumerate(NAMES)}
"""Code by name."""

ITEM_SIZES: tuple[int, ...] = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2)
"""Bytes of one element by code."""

FLOATING: frozenset[int] = frozenset({FLOAT16, FLOAT32, FLOAT64, BFLOAT16})
SUPPORTED = ", ".join(NAMES)
"""For messages."""
