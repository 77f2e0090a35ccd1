"""The rules of docs/design.md that a machine can check: import direction, public names, sizes, a light import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "steadyspike"
FILES = sorted(PACKAGE.rglob("*.py"))

# A part may import itself and the parts listed.
ALLOWED = {
    "disk": set(),
    "core": set(),
    "kernels": {"core"},
    "nn": {"core", "kernels"},
    "models": {"core", "nn"},
    "data": {"disk"},
    "train": {"disk", "core", "kernels", "nn", "models", "data"},
    "detection": {"core", "nn", "models", "data", "train", "report"},
    "analysis": {"disk", "core", "kernels", "nn", "models", "data", "train", "deploy"},
    "results": {"disk", "train"},
    "paper": {"disk", "core", "kernels", "nn", "models", "data", "train", "deploy", "analysis", "report", "results"},
    "deploy": {"disk", "core", "kernels", "nn", "models"},
    "interop": {"core", "kernels", "nn", "models"},
    "zoo": {"disk", "core", "nn", "models", "data", "train", "deploy", "results"},
    "report": {"disk", "core", "nn", "data", "train", "deploy", "results"},
}
# The folders inside a folder, at any depth; each may import those before it.
GROUPS = {
    "analysis": ("statistics", "networks", "gpu"),
    "commands": ("shared",),
    "data": ("augmentation", "formats", "sets"),
    "deploy": ("runtime", "standalone"),
    "report": ("network_page",),
    "detection": ("data", "sets", "networks"),
    "kernels": ("spikes", "conv", "scan"),
    "kernels/scan": ("cpu", "triton"),
    "models": ("blocks",),
    "models/blocks": ("attention",),
    "nn": ("attention", "norm", "loss", "neurons", "memory"),
    "paper": ("statistics", "theory", "figures", "work", "experiments"),
    "train": ("recipe", "files", "watch", "build", "state", "run"),
}
# Files that may grow beyond the usual size, with the reason.
LONG = {}
MAX_LINES = 400

PUBLIC = {
    "CheckReport", "ConstantInit", "DIET", "HealthError", "IF", "LIF", "LIFState", "LTMD", "LearnedInit",
    "MPBN", "MPInit", "MPS", "PLIF", "RateLIF", "Readout", "Reset", "__version__", "analyse", "check_model", "convert",
    "health",
    "keep_freed_memory", "load", "load_run", "make_objective", "memory_estimate", "neuron", "parameter_groups", "probe",
    "push_to_hub", "save_memory", "save_pretrained", "stabilize", "stream", "surrogate", "to_native", "undo",
    "use_dense", "use_events", "window",
}  # fmt: skip

PARTS = {
    "analysis": {"LayerShift", "ShiftReport", "analyse"},
    "data": {
        "DataBundle", "DataError", "DataSet", "Events", "FrameSettings", "Split", "SplitMismatchWarning",
        "from_dataset", "from_recordings", "load", "names",
    },
    "interop": {
        "Conversion", "convert", "stabilize", "to_native", "undo", "window",
    },
    "deploy": {
        "CannotFold", "Confidence", "DamagedFile", "Decision", "FoldedNetwork", "Graph", "IntegerNetwork", "Margin",
        "Node", "Proof", "Runtime", "Stream", "compile", "count_operations", "export_nir", "export_onnx", "fold",
        "from_nir", "load", "load_extra", "prove", "save", "stream",
    },
    "detection": {
        "Detections", "Gains", "assign", "class_ap", "complete_iou", "decode", "detection_loss", "detections",
        "draw_boxes", "mean_ap", "pairwise_iou", "suppress", "yolo_ap",
    },
    "models": {
        "ConvNormLIF", "Entry", "Parts", "Shape", "SpikingNet", "Task", "create", "names", "register",
    },
    "nn": {
        "BNTT", "Check", "CheckReport", "ConstantInit", "DIET", "Folded", "HealthError", "IF", "InitialPotential",
        "LIF", "LOSSES", "LTMD", "LearnedInit", "MPBN", "MPInit", "MPS", "NEURONS", "NORMS", "Neuron", "NeuronSpec",
        "Normed", "Objective", "PLIF", "RateLIF", "Readout", "ScanSpec", "Site", "StepBN", "StepNorm", "TAB", "TDBN",
        "TEBN", "TERMS", "TaskLoss", "Term", "TimeNorm", "check_model", "conv_norm_neuron", "fold_time", "health",
        "make_norm", "make_objective", "neuron_factory", "norm_neuron", "parameter_groups", "repeat_in_time",
    },
    "plot": {"raster", "rates", "traces"},
    "train": {
        "Recipe", "RecipeError", "RunError", "RunFolder", "RunData", "Task", "build_model",
        "build_optimizer", "dry_run", "evaluate_run", "find_recipe", "load_recipe", "load_weights", "new_folder",
        "recipe_names", "save_weights", "train",
    },
    "zoo": {"Pretrained", "load", "names", "push_to_hub", "save_pretrained"},
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Names of all steadyspike modules a file imports, lazily or not."""
    actual = set()
    package = ("steadyspike", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*start, *([node.module] if node.module else [])])
            actual |= {f"{origin}.{alias.name}" for alias in node.names}
    return {name for name in actual if name.startswith("steadyspike")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    part = path.relative_to(PACKAGE).parts[0]
    if part not in ALLOWED or path.name == "__main__.py":
        pytest.skip("a top-level file and an entry point may import everything")
    for name in imports(path):
        target = name.split(".")[1] if "." in name else ""
        assert target in ALLOWED[part] | {part}, f"{part} must not import {name}"


FOLDERS = sorted({parent for file in FILES for parent in file.parents if PACKAGE in parent.parents})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_folder_in_a_folder_has_its_place(folder):
    name = folder.relative_to(PACKAGE).as_posix()
    folders = {child.name for child in FOLDERS if child.parent == folder}
    assert folders == set(GROUPS.get(name, ())), f"{name}/: list its folders in GROUPS, lowest first"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_inside_a_folder_imports_have_one_direction(folder):
    """A folder imports folders that `GROUPS` lists before it, and no file that imports it, on any way."""
    groups = GROUPS.get(folder.relative_to(PACKAGE).as_posix(), ())
    start = ("steadyspike", *folder.relative_to(PACKAGE).parts)
    edges: dict[str, set[str]] = {}
    for path in (path for path in FILES if folder in path.parents):
        child = path.relative_to(folder).with_suffix("").parts[0]
        inside = [name.split(".") for name in imports(path)]
        targets = {name[len(start)] for name in inside if tuple(name[: len(start)]) == start and len(name) > len(start)}
        edges.setdefault(child, set()).update(targets - {child})
    for child in groups:
        above = edges[child] & set(groups[groups.index(child) :])
        assert not above, f"{'/'.join(start[1:])}/{child} must not import {', '.join(sorted(above))}"
        assert child not in reached(edges, edges[child]), f"{child}/ imports a file that imports {child}/"


def reached(edges: dict[str, set[str]], first: set[str]) -> set[str]:
    """Everything that ``first`` imports, directly or through others."""
    seen, left = set(first), list(first)
    while left:
        new = edges.get(left.pop(), set()) - seen
        seen |= new
        left += new
    return seen


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_small(path):
    lines = len(path.read_text().splitlines())
    assert lines <= LONG.get(str(path.relative_to(PACKAGE)), MAX_LINES), f"{lines} lines: split it by ideas"


def test_public_names_are_pinned():
    import steadyspike

    assert set(steadyspike.__all__) == PUBLIC
    assert all(hasattr(steadyspike, name) for name in PUBLIC)


def test_dir_shows_the_public_names_and_the_docstring_names_them():
    import steadyspike

    assert set(dir(steadyspike)) == PUBLIC | set(PARTS)
    assert all(getattr(steadyspike, name) is not None for name in dir(steadyspike))
    page = steadyspike.__doc__ or ""
    unnamed = [
        n for n in PUBLIC if n not in page and n not in ("__version__", "CheckReport", "HealthError", "LIFState")
    ]
    assert not unnamed, f"help(steadyspike) does not name {unnamed}"


def test_import_needs_only_torch_and_numpy():
    """Every optional package is blocked; importing the package and running the neuron must still work."""
    code = '''
import sys
blocked = set("""lightning pytorch_lightning torchmetrics pydantic typer rich tensorboard safetensors pooch PIL sklearn
aedat matplotlib jinja2 nir nirtorch onnx triton torchvision spikingjelly snntorch norse scipy pandas tqdm""".split())
class Hide:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
import torch, steadyspike as ss
assert "torch._dynamo" not in sys.modules, "importing the compiler makes the import slow"
x = torch.randn(3, 2, 4, requires_grad=True)
ss.LIF()(x).sum().backward()
assert not blocked & set(sys.modules), blocked & set(sys.modules)
print("light")
'''
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "light", done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_parts_export_a_pinned_list(part):
    module = importlib.import_module(f"steadyspike.{part}")
    assert set(module.__all__) == PARTS[part]
    for name in module.__all__:
        assert getattr(module, name) is not None
