"""Networks on a Hugging Face hub: `push_to_hub` and ``ss.load("hf://owner/name")``; needs the package huggingface_hub.

Only the files that `save_pretrained` writes are downloaded, each with a limit of its size; none of them is code. A
download is pinned by a commit (``hf://owner/name@COMMIT``), by ``sha256=`` of the weights, or otherwise by the checksum
of this user's first download. If weights change later on the hub, loading raises an error.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from steadyspike.data.cache import default_dir, lock, writable_dir
from steadyspike.deploy.errors import missing_package
from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError
from steadyspike.train.run.loading import LoadedRun
from steadyspike.zoo.description import CARD, FILE, LARGEST_TEXT, LARGEST_WEIGHTS
from steadyspike.zoo.pretrained import Pretrained
from steadyspike.zoo.saving import save_pretrained

WEIGHTS = "weights.safetensors"
LIMITS = {FILE: LARGEST_TEXT, CARD: LARGEST_TEXT, WEIGHTS: LARGEST_WEIGHTS}
_ADDRESS = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w.-]{1,100}))?")
_COMMIT = re.compile("[0-9a-f]{40}")


class Address(NamedTuple):
    """A repository on a hub, and a branch, tag or commit of it."""

    repository: str
    revision: str | None

    @property
    def pinned(self) -> bool:
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def parse(text: str) -> Address:
    """``hf://owner/name`` or ``hf://owner/name@REVISION``."""
    parts = _ADDRESS.fullmatch(text)
    if parts is None or ".." in text:
        raise RunError(f"{text[:200]!r} is not a network on a hub; write hf://owner/name or hf://owner/name@COMMIT")
    return Address(parts[1], parts[2])


def push_to_hub(model: nn.Module | LoadedRun | Pretrained, repository: str, **options: Any) -> str:
    """Saves a network (`save_pretrained`, which gets ``options``), uploads it and returns its address for `load`.

    repository: ``owner/name``. It is created if it does not exist. You must be logged in (``hf auth login``). The
    address contains the commit, so that it always refers to this network.
    """
    import tempfile

    missing_package("huggingface_hub", "hub")
    from huggingface_hub import HfApi

    parse(f"hf://{repository}")
    with tempfile.TemporaryDirectory() as made:
        folder = save_pretrained(model, Path(made) / repository.partition("/")[2], **options)
        api = HfApi(endpoint=_endpoint())
        api.create_repo(repository, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="steadyspike network")
    return f"hf://{repository}@{commit.oid}"


def download(text: str, sha256: str | None) -> Path:
    """Returns the folder of a network on a hub, downloaded if needed.

    Raises RunError if its weights are not the pinned ones.
    """
    missing_package("huggingface_hub", "hub")
    address = parse(text)
    folder = _fetch(address)
    sha256_now = file_sha256(folder / WEIGHTS)
    if sha256 is None and not address.pinned:
        _check_pin(address, sha256_now)
    return folder


def _fetch(address: Address) -> Path:
    paths = [path for name, limit in LIMITS.items() if (path := _file(address, name, limit)) is not None]
    if len({path.parent for path in paths}) != 1:
        raise RunError(f"{address.repository} changed while it was downloaded; try again")
    return paths[0].parent


def _file(address: Address, name: str, limit: int) -> Path | None:
    """Returns a file of the network, stored in the user's cache; None if there is no card.

    A pinned file that is in the cache needs no internet connection.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    (repository, revision), at = address, _endpoint()
    cache = _folder() / "hub"
    try:
        if address.pinned:
            with suppress(EntryNotFoundError):
                local = hf_hub_download(repository, name, revision=revision, cache_dir=cache, local_files_only=True)
                return Path(local)
        facts = get_hf_file_metadata(hf_hub_url(repository, name, revision=revision, endpoint=at), endpoint=at)
        if facts.size is None or facts.size > limit:
            raise RunError(f"{name} of {repository} has {facts.size} bytes; {limit} are allowed")
        commit = facts.commit_hash or revision
        return Path(hf_hub_download(repository, name, revision=commit, cache_dir=cache, endpoint=at))
    except EntryNotFoundError:
        if name == CARD:
            return None
        raise RunError(f"{repository} has no {name}: it is not a network of save_pretrained") from None
    except RunError:
        raise
    except Exception as error:  # the exceptions of its HTTP client differ between versions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{name} of {repository} cannot be downloaded: {reason}") from error


def _endpoint() -> str | None:
    """Returns the hub's address from the environment (huggingface_hub reads it only at import); None: the default."""
    return os.environ.get("HF_ENDPOINT")


def _folder() -> Path:
    return writable_dir(default_dir()) / "zoo"


def _check_pin(address: Address, sha256: str) -> None:
    """Compares with the checksum of the first download, and stores it.

    Raises RunError if the weights have changed since.
    """
    path = _folder() / "pins.json"
    name = f"{address.repository}@{address.revision or 'main'}"
    with lock(path.with_name("pins.json.lock")):
        pins = _pins(path)
        if pins.setdefault(name, sha256) != sha256:
            raise RunError(
                f"the weights of hf://{name} have changed on the hub since they were first downloaded here "
                f"(sha256 {pins[name][:12]}..., now {sha256[:12]}...); give sha256={sha256!r} to accept them"
            )
        text = json.dumps(pins, indent=1, sort_keys=True) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))


def _pins(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        pins = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        pins = None
    if not isinstance(pins, dict):
        raise RunError(f"{path} is damaged; delete it to pin downloads again")
    return pins
