"""Reads the official CIFAR pickles as plain data: nothing named in the file is ever imported or called.

A pickle is a program. This reader first walks its operations without running them and refuses all that a nest of dicts,
lists, strings, numbers and a uint8 array does not need; then it loads it with stand-ins for the names numpy writes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from steadyspike.data.errors import DataError

_OPERATIONS = """
    PROTO FRAME STOP MARK EMPTY_DICT DICT EMPTY_LIST LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS APPEND
    APPENDS STRING BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE UNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES
    BINBYTES8 INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT NONE NEWTRUE NEWFALSE GLOBAL STACK_GLOBAL
    REDUCE BUILD PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET POP POP_MARK DUP
"""
_ALLOWED = frozenset(_OPERATIONS.split())
_MEMO_WRITES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Dtype:
    """Stands for numpy.dtype: only unsigned bytes are accepted."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind not in ("u1", b"u1", "uint8"):
            raise pickle.UnpicklingError(f"array of type {kind!r}; only unsigned bytes are expected")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands for a pickled ndarray: takes shape and bytes, hands out a checked uint8 array."""

    value: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("array without a type")
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.value = np.frombuffer(raw, np.uint8).reshape(tuple(int(n) for n in shape), order="F" if fortran else "C")


class _Callable:
    """A function stand-in without attributes of its own: a BUILD operation could rewrite those of a real function."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


class _NewArray(_Callable):
    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _Encode(_Callable):
    __slots__ = ()

    def __call__(self, text: str, encoding: str = "latin1") -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding!r}")
        return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _NewArray(),
    ("numpy._core.multiarray", "_reconstruct"): _NewArray(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which data has no need of") from None


def load(raw: bytes, path: str | Path) -> dict[str, Any]:
    """The pickled dict, keys as str, its arrays as numpy arrays; DataError for anything else."""
    try:
        _check_operations(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dict")
        return {_text(key): value.value if isinstance(value, _Array) else value for key, value in content.items()}
    except Exception as error:  # a damaged pickle can fail in any way; none of them may pass as something else
        raise DataError(f"is not a plain data pickle ({error}).", path) from error


def _check_operations(raw: bytes) -> None:
    for count, (operation, argument, _) in enumerate(pickletools.genops(raw)):
        if operation.name not in _ALLOWED:
            raise pickle.UnpicklingError(f"operation {operation.name} does not belong in it")
        # The C unpickler allocates its memo up to the largest index: an absurd one would exhaust memory.
        if operation.name in _MEMO_WRITES and not (isinstance(argument, int) and 0 <= argument <= count + 1):
            raise pickle.UnpicklingError(f"memo index {argument} at operation {count}")


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("latin1")
    if not isinstance(key, str):
        raise pickle.UnpicklingError(f"key {key!r} is not a string")
    return key
