"""Spiking transformers against SpikingJelly's classes of the same networks, and both orders of the attention product.

    python -m benchmarks.transformers [--rounds 3] [--threads 2] [--only qkformer] [--markdown docs/benchmarks.md]

Both learn tau per layer (PLIF there, V and tau here) with a soft reset. Every contender has its own process; they
take turns, and the shortest time counts. SpikingJelly's Spikformer pools before its neurons, which is less work than
the official order; ours is timed in both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks import machine, result_tables
from benchmarks.contenders import LEAN, OURS, PLIF
from benchmarks.tasks import Runs, peak, runs_of, seconds
from torch import Tensor, nn
from torch.nn import functional as F

from steadyspike import models
from steadyspike.nn.attention.product import cheaper_order, spike_attention
from steadyspike.nn.memory.pack import save_memory

ROOT = Path(__file__).parent.parent
MARKS = ("<!-- transformer tables: written by benchmarks/transformers.py -->", "<!-- end of transformer tables -->")
OFFICIAL = "SteadySpike, poolings behind the neurons"
GOAL = 1.5
# name: (steps, what it is)
CASES = {
    "spikformer": "Spikformer-8-384 at a quarter of its width (96 channels), 3x128x128, B=4, T=4",
    "qkformer": "QKFormer of 64, 128 and 256 channels, a block each, event frames 2x128x128, B=2, T=10",
}
CONTENDERS = {"spikformer": [OURS, LEAN, OFFICIAL, PLIF], "qkformer": [OURS, LEAN, PLIF]}


def example(case: str) -> Tensor:
    """Static images, or frames with few events."""
    torch.manual_seed(0)
    if case == "spikformer":
        return torch.randn(4, 3, 128, 128)
    return torch.poisson(torch.full((10, 2, 2, 128, 128), 0.1))


def ours(case: str, contender: str) -> nn.Module:
    if case == "spikformer":
        pool_first = contender != OFFICIAL
        net = models.create(
            "spikformer_8_384", num_classes=10, image_size=128, width=0.25, bias=False, pool_first=pool_first
        )
    else:
        net = models.create(
            "qkformer_10_384", num_classes=10, in_channels=2, image_size=128, dim=256, depth=(1, 1, 1), heads=8,
            bias=False, timesteps=10,
        )  # fmt: skip
    net = net.to(memory_format=torch.channels_last)
    if contender == LEAN:
        save_memory(net)
    return net


def theirs(case: str) -> nn.Module:
    from spikingjelly.activation_based import functional, neuron
    from spikingjelly.activation_based.model.qkformer import QKFormer
    from spikingjelly.activation_based.model.spikformer import Spikformer

    def node(**options: Any) -> nn.Module:
        return neuron.ParametricLIFNode(v_reset=None, step_mode="m")

    if case == "spikformer":
        net: nn.Module = Spikformer(4, 3, 128, 128, 16, 10, 96, 8, depths=8, spiking_neuron=node)
    else:
        net = QKFormer(10, 2, 10, 256, (8, 8, 8), (1, 1, 1), spiking_neuron=node)
    for module in net.modules():
        if hasattr(module, "attn_lif"):
            module.attn_lif.v_threshold = 0.5

    class Fresh(nn.Module):
        """From rest at every call, logits per step or their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            functional.reset_net(self.net)
            out = self.net(x)
            return out if out.ndim == 3 else out[None]

    return Fresh()


def prepare(case: str, contender: str) -> Runs:
    x = example(case)
    torch.manual_seed(0)
    net = theirs(case) if contender == PLIF else ours(case, contender)
    y = torch.randint(0, 10, (x.shape[-4],))
    return runs_of(net, x, lambda out: F.cross_entropy(out.mean(0), y))


def products() -> str:
    """Both orders of the product at the shapes of the networks, forward and backward."""
    lines = ["| heads x channels x tokens | (v k^T) q | v (k^T q) | chosen |", "|---|---|---|---|"]
    for heads, channels, tokens in ((8, 48, 196), (12, 32, 64), (16, 16, 64), (8, 64, 16)):
        parts = [(torch.rand(4, 8, heads, channels, tokens) < 0.2).float().requires_grad_() for _ in range(3)]

        def run(order: str, parts: list[Tensor] = parts) -> Callable[[], object]:
            return lambda: torch.autograd.grad(spike_attention(*parts, 0.125, order).sum(), parts)

        times = [seconds(run(order), 0.3) for order in ("vk", "kq")]
        cells = " | ".join(f"{t * 1e3:.2f} ms" for t in times)
        chosen = {"vk": "(v k^T) q", "kq": "v (k^T q)"}[cheaper_order(channels, tokens)]
        lines.append(f"| {heads} x {channels} x {tokens} | {cells} | {chosen} |")
    return "\n".join(lines)


def ask(case: str, contender: str, threads: int, budget: float) -> dict[str, float]:
    """One turn of one contender, in its own process."""
    command = [sys.executable, "-m", "benchmarks.transformers", "--worker", case, contender, "--budget", str(budget)]
    command += ["--threads", str(threads)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{case}, {contender}: {done.stderr[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def work(case: str, contender: str, budget: float) -> dict[str, float]:
    runs = prepare(case, contender)
    actual: dict[str, float] = {name: (run(), seconds(run, budget))[1] for name, run in runs.items()}  # type: ignore[func-returns-value]
    return {**actual, "peak": peak(runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=1.5, help="seconds per measurement and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path, help="a file with the marks between which the tables go")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.worker:
        print(json.dumps(work(*args.worker, args.budget)))
        return
    described, texts = machine.describe(args.threads), []
    for case in (c for c in CASES if args.only in c):
        rows: dict[str, dict[str, Any]] = {name: {} for name in CONTENDERS[case]}
        for _ in range(args.rounds):
            for name, row in rows.items():
                for metric, value in ask(case, name, args.threads, args.budget).items():
                    row[metric] = min(value, row.get(metric, value))
        texts.append(result_tables.case_table(CASES[case], rows))
        for metric, what in (("train", "forward + backward"), ("forward", "evaluation"), ("peak", "peak memory")):
            ratio, least = rows[PLIF][metric] / rows[OURS][metric], 1.0 if metric == "peak" else GOAL
            verdict = "reached" if ratio >= least else "missed"
            texts.append(f"- {what}: SpikingJelly / SteadySpike {ratio:.2f}, goal {least:.1f}: {verdict}")
        print("\n".join(texts[-4:]), flush=True)
    texts.append(products())
    print(texts[-1])
    if args.markdown:
        head = f"{described['cpu']}, {described['threads']} threads; commit {described['commit']}; "
        head += f"{described['time'][:10]}; load {described['load']} at the start."
        begin, end = MARKS
        before, rest = args.markdown.read_text().split(begin, 1)
        body = "\n\n".join([head, *texts]).replace("\n\n- ", "\n- ")
        args.markdown.write_text(f"{before}{begin}\n\n{body}\n\n{end}{rest.split(end, 1)[1]}")


if __name__ == "__main__":
    main()
