"""What the package may not contain (a shell, eval, pickle, plain http), and what CI installs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "src" / "steadyspike").rglob("*.py"))
# pickletools only splits a pickle into its operations; it runs none of them.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}


def forbidden(tree: ast.AST) -> list[str]:
    """What a module does that no part of the package needs."""
    actual = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            actual += [f"imports {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES and not node.level:
            actual.append(f"imports from {node.module}")
        elif isinstance(node, ast.Call):
            actual += _forbidden_call(node)
    return actual


def _forbidden_call(node: ast.Call) -> list[str]:
    actual = []
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        actual.append(f"calls {node.func.id}")
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        owner, name = node.func.value.id, node.func.attr
        if (owner, name) in METHODS:
            actual.append(f"calls {owner}.{name}")
        if (owner, name) == ("torch", "load"):
            safe = [k for k in node.keywords if k.arg == "weights_only" and getattr(k.value, "value", None) is True]
            actual += [] if safe else ["calls torch.load without weights_only=True"]
        if (owner, name) == ("np", "load"):
            actual += [f"calls np.load with {k.arg}" for k in node.keywords if k.arg == "allow_pickle"]
    actual += [
        "uses a shell" for k in node.keywords if k.arg == "shell" and getattr(k.value, "value", True) is not False
    ]
    return actual


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "src" / "steadyspike")))
def test_no_shell_no_eval_no_pickle(path: Path) -> None:
    assert forbidden(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "eval('1')", "exec('1')", "os.system('ls')", "torch.load(f)",
        "torch.load(f, weights_only=False)", "subprocess.run('ls', shell=True)", "np.load(f, allow_pickle=True)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(code: str) -> None:
    assert forbidden(ast.parse(code)) != []


def test_every_download_is_https_and_has_a_hash() -> None:
    from steadyspike.data.sets import cifar, dvs_cifar10, dvs_gesture, mnist, nmnist

    remotes = [
        *nmnist.ARCHIVES, *dvs_cifar10.ARCHIVES.values(), dvs_cifar10.SECOND, dvs_gesture.ARCHIVE,
        *(remote for spec in (cifar.CIFAR10, cifar.CIFAR100) for _, remote in (spec.binary, spec.python)),
    ]  # fmt: skip
    assert len(remotes) == 18
    for remote in remotes:
        assert remote.url.startswith("https://") and re.fullmatch("[0-9a-f]{32}", remote.md5), remote
    for spec in (mnist.MNIST, mnist.FASHION):
        assert spec.base.startswith("https://") and all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in spec.md5)
    for path in FILES:
        assert not re.search(r"http://(?!127\.0\.0\.1|localhost)", path.read_text()), f"{path} names a plain address"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements-lock.txt").read_text().splitlines()
    actual = {}
    for line in lines:
        if not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
            assert match is not None, f"not a pinned package with a hash: {line}"
            actual[match[1]] = match[2]
    return actual


def test_the_lock_agrees_with_the_constraints() -> None:
    lock = locked()
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    other = {name: (pin, lock[canonical(name)]) for name, pin in pins.items() if lock.get(canonical(name), pin) != pin}
    assert not other, f"constraints.txt and requirements-lock.txt differ (run `make lock`): {other}"


def test_the_lock_holds_what_the_project_requires() -> None:
    from steadyspike.train.recipe.toml import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # The site's own tools are not installed by CI's `make test`; `make docs` takes them from constraints.txt.
    extras = [rs for extra, rs in project["optional-dependencies"].items() if extra != "docs"]
    required = [r for rs in (project["dependencies"], *extras) for r in rs]
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", r)[0]) for r in required if "python_version <" not in r}  # type: ignore[index]
    missing = names - set(locked()) - {"torch"}
    assert not missing, f"not in requirements-lock.txt, so CI would fetch them unchecked (run `make lock`): {missing}"
