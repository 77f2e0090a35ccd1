"""The order of the deep evidence, and what it leaves out because it would be the same run."""

import torch
from benchmarks.evidence import SEEDS, all_runs, order
from benchmarks.results_page import shown

from steadyspike.paper.work.page import Table
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Store
from steadyspike.paper.work.work import Work
from steadyspike.train.build.build_network import build_model
from steadyspike.train.recipe import load_recipe


def test_the_ablation_is_done_before_a_second_seed_of_anything_else(tmp_path):
    runs = list(dict.fromkeys(all_runs(Work(Scale("deep"), SEEDS, Store(tmp_path)))))
    again = next(i for i, run in enumerate(runs) if run.seed and "-resnet19-" not in run.recipe)
    assert {(run.recipe, run.seed) for run in runs[:again]} >= {
        (f"deep-resnet19-{method}-sgd", seed) for method in ("neither", "mp", "trsg", "both") for seed in range(SEEDS)
    }
    early = {run.recipe for run in runs[:again]}
    cases = [case for part in order() for case in part.cases]
    late = {case.deep for case in cases} - early
    assert all(name.endswith(("-long", "-adam", "-mp-sgd", "-trsg-sgd")) for name in late), late
    assert {run.seed for run in runs} == {0, 1, 2} and "deep-frozen-as-v1.0" not in early


def test_rows_and_claims_that_were_not_measured_are_one_line():
    rows = [["AS-SG", "25.00 (1 seed)"], ["TrSG", "not run"]]
    part = Table(
        "V = 2", ["family", "measured (%)"], rows, ["TrSG above AS-SG: not measured yet", "AS-SG learns: held"]
    )
    text = shown(part)
    assert "| AS-SG | 25.00 (1 seed) |" in text and "| TrSG" not in text
    assert "- AS-SG learns: held" in text and "not measured" not in text
    assert text.endswith("Not run yet: TrSG.")
    part.rows[0][1] = "not run"
    assert shown(part) == "**V = 2**: not run yet (AS-SG; TrSG)"


def gradients(name: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    recipe = load_recipe(f"deep-{name}", ["model.width=0.0625"])
    model = build_model(recipe, num_classes=10, in_channels=3, image_size=(16, 16))
    model(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_at_v_one_the_families_are_one():
    """So one run stands for three; with the plain norm it is the ablation's "neither"."""
    plain, scaled = gradients("resnet19-neither-sgd"), gradients("frozen-trsg-v1.0-scaled")
    assert plain[0].abs().sum() > 0 and scaled[0].abs().sum() > 0
    for family in ("as", "rs", "trsg"):
        for norm, expected in (("", plain), ("-scaled", scaled)):
            actual = gradients(f"frozen-{family}-v1.0{norm}")
            assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
