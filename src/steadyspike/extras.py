"""Packages that only a part of the library needs, and what to install if one is missing."""

from __future__ import annotations

# import name of a package: the extra that installs it
EXTRAS = {
    "pydantic": "train", "typer": "train", "rich": "train", "tensorboard": "train", "safetensors": "train",
    "tomli": "train", "PIL": "data", "tqdm": "data", "aedat": "aedat4", "matplotlib": "analysis",
    "faster_coco_eval": "detection", "triton": "triton",
}  # fmt: skip


def advice(error: ImportError, what: str) -> str | None:
    """One line about a missing package of `EXTRAS`, which ``what`` needs; None if another package is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"{what} needs the package {package}: pip install 'steadyspike[{EXTRAS[package]}]'"
