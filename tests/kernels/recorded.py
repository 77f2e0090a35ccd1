"""Calls of the kernels' C interface whose memory is one block, so that another processor can repeat them (replay.c)."""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import subprocess

import torch
from torch import Tensor

from steadyspike.kernels.library import LIBRARY

SIZE = 8 << 20


class Recording:
    """A block of memory with tensors by name, and the calls on them."""

    def __init__(self) -> None:
        self.block = mmap.mmap(-1, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.block))
        self.used = 0
        self.outputs: dict[str, Tensor] = {}
        self.calls: list[tuple[str, list[int], float]] = []
        self.random = torch.Generator().manual_seed(0)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, name: str | None = None) -> Tensor:
        """Zeros in the block; with a name, something that the calls write."""
        count = math.prod(shape)
        t = torch.frombuffer(self.block, dtype=dtype, count=count, offset=self.used).view(shape)
        self.used = (self.used + t.nbytes + 127) // 64 * 64
        if name is not None:
            self.outputs[name] = t
        return t

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> Tensor:
        return self.tensor(shape, dtype).copy_(torch.randn(shape, generator=self.random) + mean)

    def words(self, *shape: int, rate: float = 0.2) -> Tensor:
        """Random bits in words of 64."""
        bits = (torch.rand(*shape, 64, generator=self.random) < rate).long()
        return self.tensor(shape, torch.int64).copy_((bits << torch.arange(64)).sum(-1))

    def struct(self, data: bytes) -> int:
        """The address of a copy of ``data`` in the block."""
        target = self.tensor((len(data),), torch.uint8)
        target.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return target.data_ptr()

    def call(self, name: str, *arguments: int, number: float = 0.0) -> None:
        padded = [*arguments, *[0] * (11 - len(arguments))]
        self.calls.append((f"steadyspike_{name}", padded, number))

    def written(self) -> bytes:
        """The file that replay.c reads."""
        calls = b"".join(struct.pack("64s11qf", name.encode(), *given, f) for name, given, f in self.calls)
        return struct.pack("3q", self.address, SIZE, len(self.calls)) + self.block[:] + calls

    def run_here(self) -> tuple[list[int], dict[str, Tensor]]:
        """What the calls return and write on this machine; the block is as before afterwards."""
        before, library, returned = self.block[:], ctypes.CDLL(str(LIBRARY)), []
        for name, given, number in self.calls:
            function = getattr(library, name)
            function.restype = ctypes.c_int64
            returned.append(function(*map(ctypes.c_int64, given), ctypes.c_float(number)))
        results = {name: t.clone() for name, t in self.outputs.items()}
        self.block[:] = before
        return returned, results

    def run_there(self, command: list[str]) -> tuple[list[int], dict[str, Tensor]]:
        """The same in a process of another processor; command: emulator, replay and library."""
        out = subprocess.run(command, input=self.written(), capture_output=True, check=True).stdout
        returned = list(struct.unpack_from(f"{len(self.calls)}q", out))
        block = bytearray(out[8 * len(self.calls) :])
        results = {
            name: torch.frombuffer(block, dtype=t.dtype, count=t.numel(), offset=t.data_ptr() - self.address)
            for name, t in self.outputs.items()
        }
        return returned, {name: t.view(self.outputs[name].shape) for name, t in results.items()}
