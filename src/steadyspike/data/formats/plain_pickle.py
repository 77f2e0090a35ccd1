"""Reads the official CIFAR pickles as plain data: no name in the file is ever imported or called.

A pickle is a program for a small stack machine. This is that machine without its dangerous operations. It supports
dicts with text keys, lists, tuples, strings, numbers and a uint8 array; every other operation raises an error. It never
compares, hashes or prints objects that the file built, except text: with nested tuples that share their parts this
would take exponential time.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steadyspike.data.errors import DataError, brief

# The largest number of operations in a file: the longest official one (50,000 rows of two labels and a name) has
# 400,000.
MOST_OPERATIONS = 1_000_000
# Text may be turned into bytes (the file holds them twice as large as memory does): at most this much more than the
# file's size.
ROOM = 1 << 16

_CONSTANTS = """
    STRING BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE UNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
"""
_ARRAY, _DTYPE, _ENCODE = "an array", "an array type", "an encoder"
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy", "ndarray"): "the array class",
    ("numpy", "dtype"): _DTYPE,
    ("_codecs", "encode"): _ENCODE,
}


class _Refused(ValueError):
    """The file contains an operation that plain data does not need."""


class _Name:
    """A placeholder for a name in numpy's pickles; `what` describes it."""

    def __init__(self, what: str) -> None:
        self.what = what


class _Dtype:
    """A placeholder for numpy's type of unsigned bytes."""


class _Array:
    """A placeholder for a pickled array until its shape and bytes are known."""

    value: np.ndarray | None = None


_MARK = object()


class _Machine:
    """The stack and the memo of one file. `run` returns the value that the last operation leaves on the stack."""

    def __init__(self, raw: bytes) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = len(raw) + ROOM
        self.count = 0

    def run(self, raw: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(raw):
            self.count += 1
            if self.count > MOST_OPERATIONS:
                raise _Refused(f"it has more than {MOST_OPERATIONS} operations")
            name = operation.name
            if name == "STOP":
                return self.pop()
            if name not in _OPERATIONS:
                raise _Refused(f"operation {name} does not belong in it")
            _OPERATIONS[name](self, argument)
        raise _Refused("it has no end")

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _Refused("an operation finds too little on the stack")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Removes everything above the last mark from the stack, and the mark itself."""
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise _Refused("an operation finds no mark on the stack")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def last(self, kind: type) -> Any:
        """Returns the value on top of the stack without removing it; raises an error if it has another type."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _Refused(f"an operation finds no {kind.__name__} on the stack")
        return self.stack[-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def tuple_of(self, count: int) -> None:
        self.push(tuple(reversed([self.pop() for _ in range(count)])))

    def set_items(self, items: list[Any]) -> None:
        table = self.last(dict)
        if len(items) % 2:
            raise _Refused("a dict has a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            table[_text(key)] = value

    def new_dict(self, items: list[Any]) -> None:
        self.push({})
        self.set_items(items)

    def extend(self, items: list[Any]) -> None:
        self.last(list).extend(items)

    def append(self) -> None:
        item = self.pop()
        self.last(list).append(item)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def remember(self, index: Any) -> None:
        if not self.stack or self.stack[-1] is _MARK:
            raise _Refused("an operation finds too little on the stack")
        if not 0 <= int(index) <= self.count:
            raise _Refused(f"it stores value {int(index)} at operation {self.count}")
        self.memo[int(index)] = self.stack[-1]

    def recall(self, index: Any) -> None:
        if int(index) not in self.memo:
            raise _Refused("it uses a value that it has not stored")
        self.push(self.memo[int(index)])

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Refused("it refers to a name that is not text")
        if (module, name) not in _NAMES:
            raise _Refused(f"it refers to '{module[:40]}.{name[:40]}', which data has no need of")
        self.push(_Name(_NAMES[module, name]))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def reduce(self) -> None:
        """Handles the operation that calls a function; only the three functions in numpy's pickles are allowed."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise _Refused("it calls something that is not a function")
        if function.what == _ARRAY:
            self.push(_Array())
        elif function.what == _DTYPE:
            if (
                not arguments
                or not isinstance(arguments[0], (str, bytes))
                or _text(arguments[0]) not in ("u1", "uint8")
            ):
                raise _Refused("it holds an array of another type than unsigned bytes")
            self.push(_Dtype())
        elif function.what == _ENCODE and len(arguments) == 2 and all(isinstance(a, str) for a in arguments):
            if arguments[1] != "latin1":
                raise _Refused("it uses an encoding other than latin1")
            self.push(self.encoded(arguments[0]))
        else:
            raise _Refused(f"it calls {function.what} in an unknown way")

    def encoded(self, text: str) -> bytes:
        """Returns `text` as bytes.

        A few bytes in the file can encode the same long text many times, so the encoded length is limited in total.
        """
        self.left -= len(text)
        if self.left < 0:
            raise _Refused("it encodes more text than it holds")
        return text.encode("latin1")

    def build(self) -> None:
        """Handles the operation that sets an object's state: the array gets its shape and bytes."""
        state, target = self.pop(), self.last(object)
        if isinstance(target, _Dtype):
            return
        if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("it tries to change something that is not an array")
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple) or len(shape) > 4:
            raise _Refused("it holds an array without a type or a shape")
        raw = self.encoded(data) if isinstance(data, str) else data
        if not isinstance(raw, bytes) or not all(type(n) is int and 0 <= n <= len(raw) for n in shape):
            raise _Refused("it holds an array of another size than its bytes")
        target.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran is True else "C")


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("latin1")
    if not isinstance(key, str):
        raise _Refused(f"a key is a {type(key).__name__}, not text")
    return key


Operation = Callable[[_Machine, Any], object]
_OPERATIONS: dict[str, Operation] = {
    **{name: lambda machine, argument: machine.push(argument) for name in _CONSTANTS.split()},
    "PROTO": lambda machine, argument: None,
    "FRAME": lambda machine, argument: None,
    "MARK": lambda machine, argument: machine.push(_MARK),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_TUPLE": lambda machine, argument: machine.push(()),
    "DICT": lambda machine, argument: machine.new_dict(machine.since_mark()),
    "LIST": lambda machine, argument: machine.push(machine.since_mark()),
    "TUPLE": lambda machine, argument: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, argument: machine.tuple_of(1),
    "TUPLE2": lambda machine, argument: machine.tuple_of(2),
    "TUPLE3": lambda machine, argument: machine.tuple_of(3),
    "SETITEM": lambda machine, argument: machine.set_item(),
    "SETITEMS": lambda machine, argument: machine.set_items(machine.since_mark()),
    "APPEND": lambda machine, argument: machine.append(),
    "APPENDS": lambda machine, argument: machine.extend(machine.since_mark()),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, argument: machine.stack_name(),
    "REDUCE": lambda machine, argument: machine.reduce(),
    "BUILD": lambda machine, argument: machine.build(),
    "PUT": lambda machine, argument: machine.remember(argument),
    "BINPUT": lambda machine, argument: machine.remember(argument),
    "LONG_BINPUT": lambda machine, argument: machine.remember(argument),
    "MEMOIZE": lambda machine, argument: machine.remember(len(machine.memo)),
    "GET": lambda machine, argument: machine.recall(argument),
    "BINGET": lambda machine, argument: machine.recall(argument),
    "LONG_BINGET": lambda machine, argument: machine.recall(argument),
    "POP": lambda machine, argument: machine.pop(),
    "POP_MARK": lambda machine, argument: machine.since_mark(),
    "DUP": lambda machine, argument: machine.push(machine.last(object)),
}  # fmt: skip


def load(raw: bytes, path: str | Path) -> dict[str, Any]:
    """Returns the pickled dict with keys as str and arrays as numpy arrays; raises DataError for anything else."""
    try:
        content = _Machine(raw).run(raw)
        if not isinstance(content, dict):
            raise _Refused(f"it holds a {type(content).__name__}, not a dict")
        return {key: value.value if isinstance(value, _Array) else value for key, value in content.items()}
    except Exception as error:  # a damaged pickle can fail in any way, and every failure must become a DataError
        raise DataError(f"is not a plain data pickle ({brief(error)})", path) from error
