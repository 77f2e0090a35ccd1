"""Damaged, forged and hand-made files of the deploy readers: the short form of `python -m torture deploy`."""

from __future__ import annotations

import pytest
from torture import deploy_readers
from torture.hostile_nir import FILES

from steadyspike.deploy import CannotFold, DamagedFile, from_nir

pytest.importorskip("nir")


@pytest.mark.parametrize("forged", [False, True])
def test_folded_files(tmp_path, forged):
    tally = deploy_readers.folded_files(tmp_path, 300, 0, forged)
    assert tally.tries == 300 and tally.failures == [] and tally.refused > 150


def test_damaged_nir_files(tmp_path):
    tally = deploy_readers.nir_files(tmp_path, 1000, 0)
    assert tally.tries == 1000 and tally.failures == [] and tally.refused > 300


@pytest.mark.parametrize("name", FILES)
def test_nir_files_made_by_hand(tmp_path, name):
    write, refusal = FILES[name]
    write(tmp_path / "hostile.nir")
    if not refusal:
        assert len(from_nir(tmp_path / "hostile.nir").graph.nodes) < 200
        return
    with pytest.raises((DamagedFile, CannotFold), match=refusal) as error:
        from_nir(tmp_path / "hostile.nir")
    assert "\n" not in str(error.value)


def test_a_reader_that_ends_or_hangs_is_one_line(tmp_path, monkeypatch):
    from steadyspike.deploy import nir_file

    write, _ = FILES["a recurrent graph"]
    write(tmp_path / "net.nir")
    for code, named in (("import os; os.abort()", "HDF5 cannot read it"), ("while True: pass", "not read in")):
        worker = tmp_path / "nir_worker.py"
        worker.write_text(code)
        monkeypatch.setattr(nir_file, "__file__", str(tmp_path / "nir_file.py"))
        with pytest.raises(DamagedFile, match=named):
            nir_file._tree(tmp_path / "net.nir", 1 << 20, 2)
