"""The memory line names what must be free for the whole process, not only for the tensors of a step."""

import re

import torch

from steadyspike.train.building.lightning_data import SpikingData
from steadyspike.train.callbacks.memory_use import memory_held, memory_line, size
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import new_session


def test_the_line_counts_what_the_process_holds(tmp_path):
    recipe = load_recipe("tiny")
    session = new_session(recipe, RunFolder(tmp_path), SpikingData(recipe))
    batch = next(iter(session.data.train_dataloader()))
    now, most = memory_held()
    assert 100 * 2**20 < now <= most
    line = memory_line(session, batch, torch.device("cpu"), now, processes=2)
    found = re.fullmatch(r"memory: about (.+) must be free for each process: (.+) held before training, .*", line)
    assert found is not None, line
    assert found[1] in (size(memory_held()[1]), size(most)) and found[2] == size(now)
    line = memory_line(session, batch, torch.device("cpu"), 2**40)  # more than was ever seen: then the sum counts
    assert line.startswith("memory: about 1024.0 GB must be free: 1024.0 GB held before training")


def test_large_numbers_in_words():
    assert size(84 * 2**20) == "84 MB" and size(1.5 * 2**30) == "1.5 GB"
