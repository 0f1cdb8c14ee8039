"""Elements to byte planes and back.

A float's exponent sits across two bytes: rotated left by one bit it fills the top byte by itself, and the sign joins
the mantissa. Split into one plane per byte of the element, the exponent plane has few distinct values and is worth
coding; mantissa planes of trained weights are noise and are not.

Work goes in blocks that fit the L2 cache. The scratch memory of a block is kept per thread.
"""

import threading

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
BLOCK = 1 << 17  # bytes of elements per block: block, rotated copy and planes together fit a 1 MiB L2 cache
_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_local = threading.local()


def split(raw: Bytes, planes: Bytes, *, rotate: bool) -> None:
    """Fill ``planes`` (width, n), plane k holding byte k of each of the n elements in ``raw`` (width * n bytes)."""
    width, count = planes.shape
    elements = raw.view(_UNSIGNED[width])
    step = BLOCK // width
    for start in range(0, count, step):
        block = elements[start : start + step]
        if rotate:
            block = _rotated(block, 1)
        columns = block.view(np.uint8).reshape(-1, width)
        for k in range(width):
            planes[k, start : start + step] = columns[:, k]


def join(planes: list[Bytes], raw: Bytes, *, rotated: bool) -> None:
    """The reverse: fill ``raw`` from one array per plane."""
    width, count = len(planes), len(planes[0])
    elements = raw.view(_UNSIGNED[width])
    step = BLOCK // width
    for start in range(0, count, step):
        block = elements[start : start + step]
        columns = block.view(np.uint8).reshape(-1, width)
        for k, plane in enumerate(planes):
            columns[:, k] = plane[start : start + step]
        if rotated:
            bits = 8 * width
            block[:] = _rotated(block, bits - 1)


def _rotated(block: npt.NDArray[np.unsignedinteger], left: int) -> npt.NDArray[np.unsignedinteger]:
    """The elements rotated left, in scratch memory that the thread's next call overwrites."""
    bits = 8 * block.itemsize
    high, low = _scratch(block)
    np.left_shift(block, block.dtype.type(left), out=high)
    np.right_shift(block, block.dtype.type(bits - left), out=low)
    np.bitwise_or(high, low, out=high)
    return high


def _scratch(block: npt.NDArray[np.unsignedinteger]) -> list[npt.NDArray[np.unsignedinteger]]:
    if not hasattr(_local, "scratch"):
        _local.scratch = [np.empty(BLOCK, np.uint8) for _ in range(2)]
    return [memory[: block.nbytes].view(block.dtype) for memory in _local.scratch]
