"""``Unpack`` for annotations of keyword options, which typing has from Python 3.11 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from typing import Unpack as Unpack
else:
    Unpack = Optional  # a placeholder: annotations are strings, which only type checkers read
