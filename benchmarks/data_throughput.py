"""How fast the data layer is on one core: CIFAR pipeline, event decoding, clip loading, JPEG decoding.

    python benchmarks/data_throughput.py [--data-dir D] [--seconds S] [--step] [--out FILE]

Prints a table and writes it to FILE (benchmarks/results/data_throughput.json). `--step` also times one small training
step, to show the loader's share of it. Goals: 20,000 augmented 32 x 32 images and 10 million decoded events a second.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steadyspike.data as data
from steadyspike.data.augment import Augment
from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset import DataSet
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat31, atis
from steadyspike.data.frames import FrameSettings, clip, integrate
from steadyspike.data.images import open_rgb, random_resized_crop
from steadyspike.data.sets.cifar import CIFAR10
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population, make_split


def rate(action: Callable[[], int], seconds: float) -> float:
    """Items a second of `action` (which returns how many it made): the best of five rounds, after one to warm up."""
    action()
    best = 0.0
    for _ in range(5):
        made, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / 5:
            made += action()
        best = max(best, made / spent)
    return best


def cifar_bundle(data_dir: Path | None) -> DataBundle:
    if data_dir is not None:
        return data.load("cifar10", data_dir)
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    population = Population([str(i) for i in range(len(images))], np.arange(len(images)) % 10)
    dataset = DataSet("random", ArraySource(images), population, tuple("0123456789"), 3, (32, 32),
                      mean=CIFAR10.mean, std=CIFAR10.std, augment=Augment(4, True))  # fmt: skip
    return DataBundle(dataset, make_split(population, "random:0"))


def random_events(count: int, size: tuple[int, int]) -> Events:
    random = np.random.default_rng(0)
    return Events(
        random.integers(0, size[1], count).astype(np.uint16), random.integers(0, size[0], count).astype(np.uint16),
        np.sort(random.integers(0, 1 << 22, count)), random.integers(0, 2, count).astype(np.uint8), size,
    )  # fmt: skip


def image_rates(bundle: DataBundle, seconds: float) -> dict[str, float]:
    out = {}
    for size in (64, 128, 256):
        loader = bundle.train_loader(size)
        batches = iter(())

        def step(loader=loader) -> int:  # type: ignore[no-untyped-def]
            nonlocal batches
            if (batch := next(batches, None)) is None:
                batches = iter(loader)
                batch = next(batches)
            return len(batch[1])

        out[f"CIFAR training batches of {size}, images/s"] = rate(step, seconds)
    return out


def event_rates(seconds: float, data_dir: Path | None) -> dict[str, float]:
    count = 200_000  # about one DVS-CIFAR10 recording
    large, small = random_events(count, (128, 128)), random_events(count, (34, 34))
    raw2, raw3, raw5 = aedat2.encode(large), aedat31.encode(large), atis.encode(small)
    frames = FrameSettings(10, "number", (48, 48))
    out = {
        "decode N-MNIST's 40-bit events/s": rate(lambda: len(atis.decode(raw5, (34, 34), "x")), seconds),
        "decode AEDAT 2.0 events/s": rate(lambda: len(aedat2.decode(raw2, "x")), seconds),
        "decode AEDAT 3.1 events/s": rate(lambda: len(aedat31.decode(raw3, "x")), seconds),
        "integrate 128 x 128, T=10, events/s": rate(lambda: (integrate(large, 10), count)[1], seconds),
        "AEDAT 2.0 to 48 x 48 clip, events/s": rate(
            lambda: (clip(aedat2.decode(raw2, "x"), frames), count)[1], seconds
        ),
    }
    if data_dir is not None and (data_dir / "N-MNIST").is_dir():
        files = sorted((data_dir / "N-MNIST" / "Test").rglob("*.bin"))
        out["read real N-MNIST files, events/s"] = rate(lambda: sum(len(atis.read(file)) for file in files), seconds)
    return out


def clip_rate(seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        clips = np.lib.format.open_memmap(f"{folder}/c.npy", mode="w+", dtype=np.float32, shape=(640, 10, 2, 48, 48))
        clips[:] = 1.0
        population = Population([str(i) for i in range(640)], np.arange(640) % 10)
        dataset = DataSet("clips", ArraySource(clips), population, tuple("0123456789"), 2, (48, 48), timesteps=10,
                          augment=Augment(4, True))  # fmt: skip
        loader = DataBundle(dataset, make_split(population, "random:0")).train_loader(64)
        return {"DVS-CIFAR10 clips of T=10, clips/s": rate(lambda: sum(len(y) for _, y in loader), seconds)}


def jpeg_rate(seconds: float) -> dict[str, float]:
    from PIL import Image

    small = np.random.default_rng(0).integers(0, 256, (47, 63, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((500, 375)).save(buffer, "JPEG", quality=90)
    generator = torch.Generator().manual_seed(0)
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        file.write(buffer.getvalue())
        file.flush()
        made = rate(lambda: len(random_resized_crop(open_rgb(file.name), 224, generator)) // 3, seconds)
        return {"ImageNet-size JPEG to 224 x 224 per worker, images/s": made}


def step_share(bundle: DataBundle) -> dict[str, float]:
    """Seconds of one training step of a quarter-width ResNet-19 (T=4, batch 64) and the loader's share of them."""
    from steadyspike import models

    model = models.create("resnet19", num_classes=10, in_channels=3, timesteps=4, width=0.25)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = iter(bundle.train_loader(64))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        x, y = next(loader)
        loaded = time.perf_counter()
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output.mean(0) if output.ndim == 3 else output, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        times.append((loaded - start, time.perf_counter() - start))
    load, total = min(t[0] for t in times), min(t[1] for t in times)
    return {
        "training step (ResNet-19 width 1/4, T=4, batch 64), s": total,
        "loader's share of it, %": 100 * load / total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("STEADYSPIKE_DATA"))
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--step", action="store_true", help="also time a training step")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "data_throughput.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data_dir = None if args.data_dir is None else Path(args.data_dir)
    bundle = cifar_bundle(data_dir)
    results: dict[str, float] = {**image_rates(bundle, args.seconds), **event_rates(args.seconds, data_dir)}
    results |= {**clip_rate(args.seconds), **jpeg_rate(args.seconds)}
    if args.step:
        results |= step_share(bundle)
    for name, value in results.items():
        print(f"{name:<60} {value:>14,.2f}" if value < 100 else f"{name:<60} {value:>14,.0f}")
    record: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "threads": 1,
        "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version(), "results": results,
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
