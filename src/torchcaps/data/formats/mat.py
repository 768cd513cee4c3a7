"""A reader of the numeric fields of one struct in an untrusted MATLAB file of level 5.

SciPy's reader trusts sizes, unpacks without a limit and recurses into nested cells. Here sizes are checked against the
file, other variables and fields are skipped, and nothing recurses.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from torchcaps.io.limits import CHUNK_BYTES, Readable, max_unpacked_bytes, open_untrusted, read_up_to, size_in_bytes

MATRIX, COMPRESSED = 14, 15  # types of element that are not numbers
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
STRUCT = 2
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
LEVEL_5, HDF5 = 1, 2
MAX_FIELDS, MAX_NAME_BYTES = 64, 64


class DamagedMat(Exception):
    """The file is damaged; the message says how."""


class NotLevel5(DamagedMat):
    """A MATLAB file of version 7.3, which is HDF5."""


def read_struct(path: Path, variable: str, wanted: tuple[str, ...], remedy: str) -> dict[str, np.ndarray] | None:
    """Read the wanted fields of a struct; None if there is no such variable, or it is not a 1×1 struct.

    Args:
        path: the file, gzipped or not.
        variable: the name of the struct.
        wanted: names of fields.
        remedy: where to get a good copy, for error messages.

    Returns:
        Each wanted field that exists, as numbers in MATLAB's shape; a field without numbers is an empty object array.
    """
    with open_untrusted(path, remedy) as (file, max_bytes):
        source = _Source(file, max_bytes)
        header = bytes(source.take(128))
        order = {b"IM": "<", b"MI": ">"}.get(header[126:])
        if order is None:
            raise DamagedMat("it does not start as one")
        version = header[125 if order == "<" else 124]
        if version == HDF5:
            raise NotLevel5("it is HDF5")
        if version != LEVEL_5:
            raise DamagedMat(f"its version is {version}")
        while source.left >= 8:
            kind, size = source.long_tag(order)
            part = inside = source.part(size)
            if kind == COMPRESSED:
                unzipped = _Source(_Inflated(part), max_unpacked_bytes(size))
                kind, size = unzipped.long_tag(order)
                inside = unzipped.part(size)
            if kind != MATRIX:
                raise DamagedMat(f"an element of type {kind} where a variable should be")
            if (found := _read_variable(inside, order, variable, wanted)) is not None:
                return found
            part.skip(part.left)
    return None


def _read_variable(source: _Source, order: str, variable: str, wanted: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    kind, shape, name = _read_head(source, order)
    if name != variable.encode() or kind != STRUCT or any(side != 1 for side in shape):
        return None
    length = _integers(source.element(order, 4), order)
    names = source.element(order, MAX_FIELDS * MAX_NAME_BYTES)[1]
    if len(length) != 1 or not 1 <= length[0] <= MAX_NAME_BYTES or len(names) % length[0]:
        raise DamagedMat("the names of its fields are damaged")
    fields: dict[str, np.ndarray] = {}
    for start in range(0, len(names), length[0]):
        field = bytes(names[start : start + length[0]]).split(b"\0")[0].decode("ascii", "replace")
        matrix, size = source.long_tag(order)
        if matrix != MATRIX:
            raise DamagedMat(f"the field {field} is damaged")
        part = source.part(size)
        if field in wanted:
            fields[field] = _read_numbers(part, order) if size else np.empty(0, dtype=object)
        part.skip(part.left)
    return fields


def _read_head(source: _Source, order: str) -> tuple[int, tuple[int, ...], bytes]:
    """Read the class, shape and name of an array."""
    flags = _integers(source.element(order, 8), order)
    shape = _integers(source.element(order, 256), order)
    name = source.element(order, MAX_NAME_BYTES)[1]
    if len(flags) != 2 or not shape or min(shape) < 0:
        raise DamagedMat("the head of an array is damaged")
    return flags[0] & 0xFF, shape, bytes(name)


def _read_numbers(source: _Source, order: str) -> np.ndarray:
    kind, shape, _ = _read_head(source, order)
    if kind not in CLASSES:
        return np.empty(0, dtype=object)
    stored, data = source.element(order, source.left)
    # numbers are stored in the smallest type that holds them, whatever the class of the array is
    code = order + NUMBERS.get(stored, "V0")
    if stored not in NUMBERS or size_in_bytes(shape, np.dtype(code).itemsize) != len(data):
        raise DamagedMat(f"an array of {'×'.join(map(str, shape))} has {len(data):,} bytes of type {stored}")
    with np.errstate(invalid="ignore"):  # for a number that the class of the array cannot hold
        return np.ndarray(shape, code, buffer=data, order="F").astype(CLASSES[kind], copy=False)


def _integers(element: tuple[int, bytes | bytearray], order: str) -> tuple[int, ...]:
    kind, data = element
    if kind not in (5, 6) or len(data) % 4:
        raise DamagedMat(f"{len(data)} bytes of type {kind} where whole numbers should be")
    return tuple(np.frombuffer(data, order + "i4").tolist())


class _Source:
    """A stream of bytes, of which `left` may still be read."""

    def __init__(self, file: Readable, left: int) -> None:
        self.file, self.left = file, left

    def read(self, size: int, /) -> bytes:
        data = self.file.read(min(size, self.left))
        self.left -= len(data)
        return data

    def take(self, size: int) -> bytearray:
        if size > self.left:
            raise DamagedMat("its parts are longer than it is")
        data = read_up_to(self, size)
        if len(data) < size:
            raise DamagedMat("it ends early")
        return data

    def part(self, size: int) -> _Source:
        """Return the next bytes as a stream."""
        if size > self.left:
            raise DamagedMat("its parts are longer than it is")
        return _Source(self, size)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.take(min(size, CHUNK_BYTES)))

    def tag(self, order: str) -> tuple[int, int, bytes | None]:
        """Read the type and size of the next element, and its bytes if they are at most four."""
        tag = self.take(8)
        first, second = np.frombuffer(tag, order + "u4").tolist()
        if first >> 16 == 0:
            return first, second, None
        if first >> 16 > 4:
            raise DamagedMat("a small element of more than four bytes")
        return first & 0xFFFF, first >> 16, bytes(tag[4 : 4 + (first >> 16)])

    def long_tag(self, order: str) -> tuple[int, int]:
        kind, size, small = self.tag(order)
        if small is not None:
            raise DamagedMat("four bytes where an array should be")
        return kind, size

    def element(self, order: str, most: int) -> tuple[int, bytes | bytearray]:
        """Read the type and bytes of the next element, at most `most` bytes."""
        kind, size, small = self.tag(order)
        if small is not None:
            return kind, small
        if size > most:
            raise DamagedMat(f"an element of {size:,} bytes where at most {most:,} fit")
        data = self.take(size)
        self.skip(min(-size % 8, self.left))  # elements begin at multiples of eight
        return kind, data


class _Inflated:
    """The content of a compressed element, unpacked as it is read."""

    def __init__(self, packed: _Source) -> None:
        self.packed, self.inflate, self.ready = packed, zlib.decompressobj(), b""

    def read(self, size: int, /) -> bytes:
        while not self.ready and not self.inflate.eof and size:
            fresh = self.inflate.unconsumed_tail or self.packed.read(1 << 16)
            try:
                self.ready = self.inflate.decompress(fresh, 1 << 20)
            except zlib.error as error:
                raise DamagedMat(str(error)) from error
            if not fresh:
                break
        data, self.ready = self.ready[:size], self.ready[size:]
        return data
