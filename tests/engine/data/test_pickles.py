"""The unpickler rebuilds integer arrays of every pickle protocol and refuses everything that could run."""

from __future__ import annotations

import builtins
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sprint.engine.data import pickles


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i8", "u2"])
def test_arrays(protocol, dtype):
    array = (np.arange(30).reshape(5, 6) * 7).astype(dtype)
    value = {b"data": array, "turned": np.asfortranarray(array), "labels": [1, 2], b"names": [b"a", "b"]}
    value["one"] = array[1, 1]
    loaded = pickles.load(pickle.dumps(value, protocol=protocol))
    assert np.array_equal(loaded["data"], array) and np.array_equal(loaded["turned"], array)
    assert loaded["labels"] == [1, 2] and loaded["names"] == ["a", "b"] and loaded["one"] == array[1, 1]


def test_batch_as_python_2_wrote_it():
    """The opcodes of the published batches: texts of bytes, and an array state whose data is such a text."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    pixels = bytes(range(200, 206))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        b"(K\x01(K\x02K\x03t" + b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"I00\n" + b"T" + struct.pack("<i", 6) + pixels + b"tb"
    )
    content = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"](K\x01K\x02eu."
    loaded = pickles.load(content)
    assert loaded["data"].dtype == np.uint8
    assert loaded["data"].tolist() == [[200, 201, 202], [203, 204, 205]] and loaded["labels"] == [1, 2]


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Call(os.system, "true"),
        Call(builtins.eval, "1"),
        Call(getattr, "a", "upper"),
        Call(np.load, "x"),
        Call(np.memmap, "x"),
        np.array([Call(os.system, "true")], object),
        np.array([1.5]),
        np.array(["text"]),
        np.zeros(2, [("a", "i4")]),
        np.datetime64("2020-01-01"),
        os.system,
        {1, 2},
        [1],
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_anything_else_is_refused(value, protocol):
    content = pickle.dumps(value if isinstance(value, list) else {"data": value}, protocol=protocol)
    if isinstance(value, set) and protocol > 2:
        assert pickles.load(content)["data"] == value  # an opcode of its own: nothing is called
        return
    with pytest.raises(pickle.UnpicklingError):
        pickles.load(content)


@given(st.data())
def test_damage_is_one_kind_of_error(data):
    content = bytearray(
        pickle.dumps({"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3]})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(pickles.load(bytes(content)), dict)
    except pickle.UnpicklingError as error:
        assert str(error)
