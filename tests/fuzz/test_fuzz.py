"""A few hundred damaged files for each parser; `make fuzz` runs a hundred thousand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutate import SIZES, mutated
from targets import TARGETS

from torchcaps.errors import UserError

PARSERS = pytest.mark.parametrize("name", TARGETS)
PLACES = st.one_of(st.integers(0, 64), st.integers(0, 1 << 14))
NEW = st.one_of(
    st.binary(max_size=16),
    st.builds(
        lambda size, order: size.to_bytes(8, order)[-4:], st.sampled_from(SIZES), st.sampled_from(["little", "big"])
    ),
    st.builds(bytes, st.integers(0, 600)),
)
EDITS = st.lists(
    st.tuples(PLACES, st.integers(0, 9), NEW), min_size=1, max_size=6
)  # where, how much of it, what instead


def edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, length, new in edits:
        place %= len(data) + 1
        data = data[:place] + new + data[place + length :]
    return data


@pytest.fixture(scope="module")
def starts():
    """Each parser's seeds, made once."""
    return {name: target.seeds() for name, target in TARGETS.items()}


@PARSERS
def test_some_of_the_files_it_starts_from_are_good(name, starts, tmp_path):
    assert any(TARGETS[name].run(start, tmp_path) for start in starts[name])


@PARSERS
def test_a_file_with_parts_replaced_is_read_or_refused(name, starts, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")

    @settings(max_examples=150)
    @given(start=st.sampled_from(starts[name]), edits=EDITS)
    def fuzz(start, edits):
        TARGETS[name].run(edited(start, edits), work)

    fuzz()


@PARSERS
def test_a_file_that_is_flipped_cut_and_spliced_is_read_or_refused(name, starts, tmp_path):
    rng, kept = random.Random(0), starts[name]
    for _ in range(250):
        TARGETS[name].run(mutated(rng.choice(kept), kept, TARGETS[name].tokens, rng), tmp_path)


@PARSERS
def test_any_bytes_at_all_are_read_or_refused(name, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")

    @settings(max_examples=50)
    @given(data=st.binary(max_size=400))
    def fuzz(data):
        TARGETS[name].run(data, work)

    fuzz()


def test_the_fuzzer_sees_what_gets_through(tmp_path):
    """One that is let through, or that names no file, is not counted as a refusal."""

    def lost(path):
        raise KeyError("lost")

    def nameless(path):
        raise UserError("something is wrong")

    for check, error in ((lost, KeyError), (nameless, AssertionError)):
        with pytest.raises(error):
            TARGETS["idx"]._replace(check=check).run(b"\0abc", tmp_path)
