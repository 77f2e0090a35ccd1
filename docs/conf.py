"""Settings of the documentation site; `make docs` builds it into docs/_build/site."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import steadyspike

project = "SteadySpike"
author = "The SteadySpike authors"
copyright = "2026, the SteadySpike authors"
version = release = steadyspike.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "command_reference",
    "docstring_layout",
    "native_mathml",
]
exclude_patterns = ["_build", "_extensions", "conf.py"]

# Markdown: the pages are written to be read on their own, too, so only common extensions are on.
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_block"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Tutorials are Python scripts in jupytext's percent format. They are executed when they change.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True

default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

# Every reference must resolve (-n), except types in signatures: they come from torch, numpy and inner modules,
# which have no page here.
nitpicky = True
nitpick_ignore_regex = [("py:(class|obj|data|exc)", r".*")]

html_theme = "furo"
html_title = "SteadySpike"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
# A page that is opened from disk may not fetch others, which the summaries of search results would.
html_show_search_summary = False
