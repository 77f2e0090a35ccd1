"""Shared pieces: random recordings, folders for data and caches, and the real data where STEADYSPIKE_DATA names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steadyspike.data.data_folders import DataFolders


@pytest.fixture
def data_folders(tmp_path: Path) -> DataFolders:
    (tmp_path / "data").mkdir()
    return DataFolders.of(tmp_path / "data", tmp_path / "cache", download=False)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the tests that only read the embedded data sets."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = os.environ.get("STEADYSPIKE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data: set STEADYSPIKE_DATA to a folder with cifar-10-batches-bin, N-MNIST, ...")
    return Path(folder)
