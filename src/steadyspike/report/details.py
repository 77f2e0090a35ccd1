"""Results that need the trained network, computed once and stored in details.json: confusion, samples, membranes.

The data of the run is needed. Training is not affected, because `steadyspike report` writes the file afterwards.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data import DataBundle
from steadyspike.data.show import frame_pixels, image_pixels, raw_samples
from steadyspike.disk.checksum import file_sha256
from steadyspike.nn.decision import NO_CLASS, decided
from steadyspike.nn.neuron import neurons
from steadyspike.nn.probe import probe
from steadyspike.report.png import data_url
from steadyspike.train.build.data import load_data
from steadyspike.train.build.task import Task
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import load_own_weights
from steadyspike.train.run.evaluation import evaluation_device

DETAILS = "details.json"
MATRIX = 40  # the largest number of classes for which the whole confusion matrix is stored
PAIRS = 40  # otherwise: the number of most frequent confusions
SHOWN = {False: 18, True: 12}  # samples: still images, clips
PROBED = 64  # the number of samples whose membranes are shown
TOP = 3


def make_details(folder: RunFolder, data_dir: Path | None = None) -> dict[str, Any]:
    """Runs the network once on the test part, and writes details.json.

    Raises RunError if the data differs from that of the run's test, DataError if there is none.
    """
    recipe, about = folder.read_recipe(), folder.read_json("run.json")
    bundle = load_data(recipe.data, data_dir or folder.data_dir(), download=False)
    if (other := bundle.split.difference(about["data"]["split"])) is not None:
        raise RunError(other)
    task = Task.for_data(recipe, bundle)
    load_own_weights(folder, task.model)
    device = evaluation_device(recipe)
    task.model.to(device).eval()
    with torch.inference_mode():
        outputs, labels = _outputs(task, bundle, device)
        details = {
            "weights": file_sha256(folder.weights),
            "part": "test",
            "samples": len(labels),
            "classes": list(bundle.classes),
            **_confusion(decided(outputs[-1]), labels, bundle.num_classes),
            "pictures": _pictures(bundle, outputs, labels),
            "membranes": _membranes(task, bundle, device),
        }
    folder.write_json(DETAILS, details)
    return details


def _outputs(task: Task, bundle: DataBundle, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns class scores after each number of time steps, [T, N, K], and the labels, [N]."""
    scores, labels, recipe = [], [], task.recipe
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.train.precision)
    loader = bundle.eval_loader("test", recipe.data.eval_batch_size, device=device, workers=recipe.data.workers)
    with torch.autocast(device.type, dtype=half, enabled=half is not None):
        for x, y in loader:
            logits = task.model(x)
            prefixes = [task.objective.predict(logits[:t]) for t in range(1, len(logits) + 1)]
            scores.append(torch.stack(prefixes).float().cpu())
            labels.append(y.cpu())
    return torch.cat(scores, 1), torch.cat(labels)


def _confusion(predicted: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    """Returns the matrix [true][predicted] of counts if it is small, otherwise the most frequent confusions.

    Both with recall.

    A sample without a prediction, because its scores are NaN, is in no column and lowers accuracy and recall.
    """
    valid = predicted != NO_CLASS
    places = labels[valid] * classes + predicted[valid]
    counts = torch.bincount(places, minlength=classes * classes).view(classes, classes)
    right, all_of = counts.diagonal(), torch.bincount(labels, minlength=classes)
    wrong = counts - torch.diag(right)
    order = wrong.flatten().argsort(descending=True, stable=True)[:PAIRS].tolist()
    pairs = [[i // classes, i % classes, int(wrong.view(-1)[i])] for i in order if wrong.view(-1)[i] > 0]
    return {
        "accuracy": 100 * int(right.sum()) / max(1, len(labels)),
        "recall": [float(r) / float(n) if n else None for r, n in zip(right, all_of)],
        "confusion": counts.tolist() if classes <= MATRIX else None,
        "confused": pairs,
    }


def _pictures(bundle: DataBundle, outputs: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Chooses samples with the prediction after each step: wrong ones, late ones, and ones that were right at once."""
    right = decided(outputs) == labels  # [T, N]
    wrong, late = ~right[-1], right[-1] & ~right.all(0)
    most = SHOWN[bundle.timesteps is not None]
    chosen: list[int] = []
    for kind in (wrong, late, right.all(0)):
        room = most - len(chosen) if kind is not wrong and kind is not late else most // 3
        chosen += _spread(torch.nonzero(kind).flatten(), labels, room)
    samples: Any = raw_samples(bundle, bundle.indices("test")[np.array(chosen, dtype=np.int64)]) if chosen else []
    pictures = []
    for index, sample in zip(chosen, samples):
        shares, best = outputs[:, index].softmax(-1).topk(min(TOP, outputs.shape[-1]), -1)
        rows = zip(best.tolist(), shares.tolist())
        steps = [[[c, round(p, 4) if isfinite(p) else None] for c, p in zip(*row)] for row in rows]
        kind_name = "wrong" if wrong[index] else "late" if late[index] else "right"
        pictures.append({"label": int(labels[index]), "kind": kind_name, "steps": steps,
                      "images": _images(sample, bundle.timesteps is not None)})  # fmt: skip
    return pictures


def _spread(places: Tensor, labels: Tensor, most: int) -> list[int]:
    """Chooses at most ``most`` of ``places``: the first of every class, then the second, and so on."""
    seen: dict[int, int] = {}
    turn = []
    for index, label in zip(places.tolist(), labels[places].tolist()):
        turn.append((seen.get(label, 0), index))
        seen[label] = seen.get(label, 0) + 1
    return [index for _, index in sorted(turn)[:most]]


def _images(sample: NDArray[Any], clip: bool) -> list[str]:
    """Returns one picture for a still image, and one for each time step of a clip."""
    if not clip:
        return [data_url(image_pixels(sample))]
    full = float(np.quantile(sample[sample > 0], 0.95)) if (sample > 0).any() else 1.0
    return [data_url(frame_pixels(f, full)) for f in sample]


def _membranes(task: Task, bundle: DataBundle, device: torch.device) -> dict[str, Any]:
    """Returns mean and standard deviation of M / V per layer and time step; if they move, the network drifts."""
    x, _ = next(iter(bundle.eval_loader("test", PROBED, device=device)))
    with probe(task.model, record="m") as seen:
        task.model(x)
    names, means, spreads = [], [], []
    for name, layer in neurons(task.model).items():
        if name not in seen or not layer.spiking:
            continue
        m = seen[name].m
        assert m is not None
        flat = m.double().flatten(1) / float(layer.threshold.double().mean())
        names.append(name)
        means.append(flat.mean(1).tolist())
        spreads.append(flat.std(1, correction=0).tolist())
    return {
        "layers": names,
        "mean": means,
        "std": spreads,
        "samples": int(x.shape[0 if bundle.timesteps is None else 1]),
    }
