"""An unpickler for data: integer arrays, lists, dictionaries, texts and numbers, and nothing that could run.

Where a pickle names one of NumPy's builders it gets a stand-in of ours: not even NumPy sees hostile states.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


class _Dtype:
    """Stands in for numpy.dtype: its code and byte order, checked to be a plain integer when used."""

    def __init__(self, code: str, *_flags: object):
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]

    def read(self, raw: object) -> np.ndarray:
        """Return the integers in `raw` (bytes, or the latin-1 text that Python 2 wrote)."""
        code = self.code.decode() if isinstance(self.code, bytes) else self.code
        order = self.order.decode() if isinstance(self.order, bytes) else self.order
        if code not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"an array of {order}{code}, not of integers")
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        if not isinstance(data, bytes | bytearray):
            raise pickle.UnpicklingError(f"array data of type {type(raw).__name__}")
        return np.frombuffer(data, np.dtype(("" if order == "|" else order) + code))


class _Array:
    """Stands in for numpy.ndarray; `values` is the array once its state has been read."""

    values: np.ndarray

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, fortran, raw = state
        self.values = dtype.read(raw).reshape(shape, order="F" if fortran else "C")


def _empty(_kind: object, _shape: object, _code: object) -> _Array:
    return _Array()


def _from_buffer(raw: object, dtype: _Dtype, shape: tuple, order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", raw))
    return array


def _scalar(dtype: _Dtype, raw: object) -> int:
    return int(dtype.read(raw)[0])


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


ADMITTED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _empty),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data does not need")
        return ADMITTED[module, name]


def load(content: bytes) -> dict[str, Any]:
    """Return the dictionary that `content` holds; bytes become text (latin-1), arrays numpy.ndarray.

    Raises: pickle.UnpicklingError for anything but one whole dictionary of plain data.
    """
    try:
        value = _DataUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged stream raises whatever its first wrong opcode leads to
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"expected a dictionary, got {type(value).__name__}")
    return {_plain(key): _plain(item) for key, item in value.items()}


def _plain(item: Any) -> Any:
    if isinstance(item, bytes):
        return item.decode("latin1")
    if isinstance(item, _Array):
        return item.values
    return [_plain(i) for i in item] if isinstance(item, list) else item
