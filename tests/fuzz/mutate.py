"""Inputs made from others: bytes flipped, moved and cut, sizes replaced by those that break arithmetic, words added."""

from __future__ import annotations

import random

SIZES = (
    0,
    1,
    2,
    7,
    8,
    255,
    256,
    1600,
    2**15,
    2**16 - 1,
    2**20,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
NUMBERS = (b"-1", b"0", b"1", b"3", b"1048576", b"1048577", b"4294967296", b"9223372036854775807", b"1e308", b"0.5")
DIGITS = frozenset(b"0123456789")


def mutated(data: bytes, others: list[bytes], tokens: tuple[bytes, ...], rng: random.Random) -> bytes:
    """The same after a few changes, most often one or two."""
    changed = bytearray(data)
    for _ in range(1 + int(rng.expovariate(0.7))):
        _change(changed, others, tokens, rng)
    return bytes(changed[: 1 << 17])


def _change(data: bytearray, others: list[bytes], tokens: tuple[bytes, ...], rng: random.Random) -> None:
    # headers are at the beginning: half of all changes are there
    here = rng.randrange(min(len(data), rng.choice((64, 64, 512, 1 << 17))) + 1)
    length = min(rng.choice((1, 1, 2, 4, 8, 64, 1024)), max(1, len(data) - here))
    kind = rng.randrange(10)
    if kind == 0 and data:
        data[here % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1 and data:
        data[here % len(data)] = rng.randrange(256)
    elif kind == 2:
        width = rng.choice((1, 2, 4, 4, 4, 8))
        size = rng.choice(SIZES) % 2 ** (8 * width)
        data[here : here + width] = size.to_bytes(width, rng.choice(("little", "big")))
    elif kind == 3:
        del data[here : here + length]
    elif kind == 4:
        data[here:here] = data[here : here + length] * rng.choice((1, 2, 50))
    elif kind == 5:
        data[here:here] = rng.randbytes(min(length, 8))
    elif kind == 6 and tokens:
        data[here:here] = rng.choice(tokens) * rng.choice((1, 1, 1, 1000))
    elif kind == 7:
        other = rng.choice(others)
        there = rng.randrange(len(other) + 1)
        data[here:] = other[there:]
    elif kind == 8:
        del data[rng.randrange(len(data) + 1) :]
    else:
        _change_number(data, here, rng)


def _change_number(data: bytearray, here: int, rng: random.Random) -> None:
    """Of a format that is text: the next whole number becomes another."""
    start = next((i for i in range(here, len(data)) if data[i] in DIGITS), None)
    if start is not None:
        end = next((i for i in range(start, len(data)) if data[i] not in DIGITS), len(data))
        data[start:end] = rng.choice(NUMBERS)
