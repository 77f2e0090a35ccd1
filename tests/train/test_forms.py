"""run.json and result.json with a right checksum and wrong content: an error, so that no reader stumbles."""

import shutil

import pytest

from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import intact_result

WRONG = (None, [], "x", -1, {})
NEEDED = {
    "result.json": ["status", "tables", "tables.metrics", "test", "test.accuracy", "weights", "seed"],
    "run.json": ["environment", "processes", "data", "data.split", "data.shape", "data.classes"],
}
KEYS = [(name, key) for name, keys in NEEDED.items() for key in keys]


def forged(root, name, key, *value):
    """Writes a file with another value of a key, or without it, with a checksum that fits."""
    folder = RunFolder(root)
    content = folder.read_json(name)
    *tables, last = key.split(".")
    table = content
    for part in tables:
        table = table[part]
    del table[last]
    table.update({last: value[0]} if value else {})
    folder.write_json(name, content)


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_file_without_a_key_or_with_another_kind_of_value_is_refused(tmp_path, finished, name, key):
    original = (finished.root / name).read_bytes()
    for value in ((), *((wrong,) for wrong in WRONG)):
        (tmp_path / name).write_bytes(original)
        given = RunFolder(tmp_path).read_json(name)
        for part in key.split("."):
            given = given[part]
        if value and type(value[0]) is type(given) and given != {}:
            continue  # of the right kind; a text for a text may be anything
        forged(tmp_path, name, key, *value)
        with pytest.raises(RunError, match=rf"{name} is damaged \(its '{key}.*' is missing or has another type\)"):
            RunFolder(tmp_path).read_json(name)


def test_a_result_of_a_wrong_form_does_not_make_a_run_ended(tmp_path, finished):
    shutil.copytree(finished.root, tmp_path / "run")
    assert intact_result(RunFolder(tmp_path / "run")) is not None
    forged(tmp_path / "run", "result.json", "status", "stopped, but it does not say why")
    assert intact_result(RunFolder(tmp_path / "run")) is None
