"""The memory line names what must be free for the whole process, not only for the tensors of a step."""

import re
from dataclasses import replace

from steadyspike.train.build.data import RunData
from steadyspike.train.files.environment import memory_held, size
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.display import memory_line
from steadyspike.train.state.processes import Processes
from steadyspike.train.state.session import Session


def test_the_line_counts_what_the_process_holds(tmp_path):
    recipe = load_recipe("tiny")
    session = Session.new(recipe, RunFolder(tmp_path), RunData(recipe))
    now = memory_held()[0]
    line = memory_line(replace(session, processes=Processes(0, 2)), now // 2)
    most = memory_held()[1]  # after the line: the peak may grow while it is made
    assert 100 * 2**20 < now <= most
    parts = re.fullmatch(
        r"memory: about (.+) must be free for each process: (.+) used before training, (.+) more in the first steps",
        line,
    )
    assert parts is not None, line
    assert parts.groups() == (size(most), size(now // 2), size(most - now // 2))


def test_large_numbers_in_words():
    assert size(84 * 2**20) == "84 MB" and size(1.5 * 2**30) == "1.5 GB"
