"""Run folders made by hand, sealed as real ones, for tests and benchmarks that need many or large ones."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np

from steadyspike.report.png import png
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe

ENVIRONMENT = {"python": "3.11", "cpu": "a processor", "gpus": [], "commit": "0" * 40, "packages": {"torch": "2.13"},
               "cores": 2, "threads": 1, "platform": "Linux", "command": ["steadyspike", "train"]}  # fmt: skip
SPLIT = {"name": "random:0", "fingerprint": "f" * 16, "parts": {"test": {"samples": 100, "fingerprint": "a" * 16}},
         "selection": "validation", "selection_text": "a part kept out of training"}  # fmt: skip


def made_run(root: Path, *, epochs: int = 3, layers: int = 2, steps: int = 2, settings=(), name="tiny", ended=True,
             names=None, health=(), accuracy=90.0, boxes=False) -> RunFolder:  # fmt: skip
    """A run of ``epochs`` epochs; ``names``: of its layers; ``ended``: False leaves out result.json.

    boxes: one that finds boxes, evaluated after every second epoch, with a picture; its mAP@.5 is accuracy / 100.
    """
    root.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(root)
    recipe = "detect-demo" if boxes else "tiny"
    folder.write_recipe(load_recipe(recipe, [f"data.timesteps={steps}", f"schedule.epochs={epochs}", *settings]))
    folder.write_json("origin.json", {"name": name, "base": "demo", "settings": [], "changed": []})
    data = {"name": "digits", "classes": 10, "shape": [1, 16, 16], "timesteps": None, "split": SPLIT}
    about = {"environment": ENVIRONMENT, "processes": 1, "seed": 0, "data": data, "parameters": 1000, "data_dir": None}
    folder.write_json("run.json", about)
    names = names or [f"body.{i}.lif" for i in range(layers)]
    tables = {
        "metrics": _metrics(epochs, steps, accuracy),
        "layers": _layers(epochs, names, steps),
        "steps": ["step,epoch,lr,loss,gradient", *(f"{e * 50},{e},0.1,{2 / e},{1 / e}" for e in range(1, epochs + 1))],
        "health": ["epoch,step,kind,layer,message", *health],
    }
    if boxes:
        tables |= {"metrics": _box_metrics(epochs, accuracy / 100), "map": _box_map(epochs, accuracy / 100)}
        _picture(root / "pictures" / f"epoch-{epochs:03d}.png")
    extents = {}
    for table, lines in tables.items():
        content = ("\n".join(lines) + "\n").encode()
        (root / f"{table}.csv").write_bytes(content)
        extents[table] = {"length": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if ended:
        test = {"accuracy": [accuracy - steps + t for t in range(1, steps + 1)], "loss": 0.5, "samples": 100}
        test = _box_result(accuracy / 100) if boxes else test
        folder.write_json("result.json", {"status": "finished", "seconds": 12.0, "weights": "best epoch (2)",
                          "test": test, "seed": 0, "split": "f" * 16, "tables": extents})  # fmt: skip
    return folder


def _metrics(epochs, steps, accuracy):
    head = ["epoch,step,lr,train_loss,train_accuracy,validation_loss"]
    head[0] += "".join(f",validation_accuracy_{t}" for t in range(1, steps + 1))
    rise = [accuracy * (1 - math.exp(-3 * e / epochs)) for e in range(1, epochs + 1)]
    rows = [f"{e},{e * 50},0.1,{2.3 / e},{rise[e - 1]},{2.4 / e}" + "".join(f",{rise[e - 1] - t}" for t in range(steps))
            for e in range(1, epochs + 1)]  # fmt: skip
    return head + rows


def _box_result(score):
    sizes = {"APs": -1.0, "APm": 0.3, "APl": 0.5, "AR100": 0.6, "ARs": -1.0, "ARm": 0.4, "ARl": 0.7}
    classes = {"<b>disc": {"AP": 0.3, "AP50": 0.6}, "bar": {"AP": 0.5, "AP50": 0.8}}
    rest = {"yolo_AP50": 0.61, "yolo_AP": 0.33, "loss": 0.5, "samples": 100}
    return {"metric": "COCO", "AP": 0.4, "AP50": score, **sizes, "classes": classes, **rest}


def _box_metrics(epochs, score):
    head = "epoch,step,lr,train_loss,validation_loss,validation_AP,validation_AP50,validation_yolo_AP50"
    start = [f"{e},{e * 50},0.1,{2 / e}" for e in range(1, epochs + 1)]
    actual = [f",{2.1 / e},0.2,{score * e / epochs},0.11" if e % 2 == 0 else ",,,," for e in range(1, epochs + 1)]
    return [head, *map("".join, zip(start, actual))]


def _box_map(epochs, score):
    names = {"all": score, "<b>disc": score - 0.1, "bar": -1.0}
    rows = [f"{e},{name},{v / 2},{v}" for e in range(2, epochs + 1, 2) for name, v in names.items()]
    return ["epoch,class,AP,AP50", *rows]


def _picture(path):
    path.parent.mkdir()
    path.write_bytes(png(np.full((8, 12, 3), 90, np.uint8)))


def _layers(epochs, names, steps):
    head = "epoch,layer,rate,silent,threshold,tau,running_mean,gradient" + "".join(
        f",rate_{t + 1}" for t in range(steps)
    )
    rows = []
    for e in range(1, epochs + 1):
        for i, name in enumerate(names):
            name = '"' + name.replace('"', '""') + '"'
            v, rate = 1 - i / 100 - e / 1000, 0.3 * math.exp(-i / 20) + e / 2000
            rates = "".join(f",{rate * (t + 1) / steps}" for t in range(steps))
            rows.append(f"{e},{name},{rate},{i / 100},{v},{2 + i / 50},{0.1 * i},{1 / (1 + i + e)}{rates}")
        rows.append(f"{e},head,,,,,,{1 / e}" + "," * steps)
    return [head, *rows]


def rewritten(folder: RunFolder, name: str, **changes) -> None:
    """Other values in a sealed JSON file, sealed again."""
    folder.write_json(name, {**folder.read_json(name), **json.loads(json.dumps(changes))})
