"""NIR by its definition, in float64: the equations of the NIR paper with forward Euler steps, written out.

Independent of the importer: it reads the `nir` objects, adds up what arrives at a node, and computes one step after
the other. CubaLIF and CubaLI update the current first. Edges in ``late`` carry the previous step, 0 at first.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
import torch.nn.functional as F


def number(values):
    return torch.as_tensor(np.asarray(values)).double()


class Simulator:
    def __init__(self, graph, dt, late=()):
        self.graph, self.dt, self.late = graph, dt, set(late)
        self.before = {name: [a for a, b in graph.edges if b == name] for name in graph.nodes}
        self.v, self.i, self.last, self.lines = {}, {}, {}, {}
        for name, node in graph.nodes.items():
            if type(node).__name__ == "Delay":
                steps = round(float(np.asarray(node.delay).flat[0]) / dt)
                self.lines[name] = deque([None] * steps, steps)

    def step(self, frame, first):
        """The value of every node at one step."""
        self.now, self.frame, self.first = {}, frame, first
        names = [n for n in self.graph.nodes if type(self.graph.nodes[n]).__name__ != "Delay"]
        for name in names:
            self.value(name)
        for name, line in self.lines.items():
            self.value(name)
            line.append(self.arriving(name))
        self.last = dict(self.now)
        return self.now

    def arriving(self, name):
        total = number(0.0)
        for source in self.before[name]:
            old = (source, name) in self.late
            total = total + (self.earlier(source, self.last.get(source)) if old else self.value(source))
        return total

    def earlier(self, name, value):
        """A value of an earlier step; 0 before the first step."""
        shape = self.graph.nodes[name].output_type["output"]
        return torch.zeros(len(self.frame), *shape, dtype=torch.float64) if value is None else value

    def value(self, name):
        if name not in self.now:
            self.now[name] = self.compute(name, self.graph.nodes[name])
        return self.now[name]

    def compute(self, name, node):
        kind = type(node).__name__
        if kind == "Input":
            if name.endswith("_start"):
                return torch.full((len(self.frame), *node.input_type["input"]), float(self.first)).double()
            return self.frame
        if kind == "Delay":
            return self.earlier(name, self.lines[name][0]) if self.lines[name].maxlen else self.arriving(name)
        x = self.arriving(name)
        if kind in ("CubaLIF", "CubaLI"):
            old = self.i.get(name, number(0.0))
            self.i[name] = x = old + self.dt / number(node.tau_syn) * (number(node.w_in) * x - old)
        if kind in ("LI", "LIF", "CubaLI", "CubaLIF", "I", "IF"):
            v = self.v.get(name, number(0.0))
            if kind in ("I", "IF"):
                v = v + self.dt * number(node.r) * x
            else:
                tau = number(node.tau_mem if kind.startswith("Cuba") else node.tau)
                v = v + self.dt / tau * (number(node.v_leak) - v + number(node.r) * x)
            if kind in ("LI", "CubaLI", "I"):
                self.v[name] = v
                return v
            z = v > number(node.v_threshold)
            self.v[name] = torch.where(z, number(node.v_reset).expand_as(v), v)
            return z.double()
        if kind == "Threshold":
            return (x > number(node.threshold)).double()
        if kind == "Scale":
            return x * number(node.scale)
        if kind in ("Linear", "Affine"):
            return F.linear(x, number(node.weight), number(node.bias) if kind == "Affine" else None)
        if kind in ("Conv1d", "Conv2d"):
            conv = F.conv1d if kind == "Conv1d" else F.conv2d
            same = (number(node.weight).shape[-1] // 2) if isinstance(node.padding, str) else node.padding
            return conv(x, number(node.weight), number(node.bias), node.stride, same, node.dilation, node.groups)
        if kind in ("AvgPool2d", "SumPool2d"):
            sizes = [tuple(int(n) for n in p) for p in (node.kernel_size, node.stride, node.padding)]
            return F.avg_pool2d(x, *sizes, divisor_override=1 if kind == "SumPool2d" else None)
        if kind == "Flatten":
            return x.flatten(1)
        assert kind == "Output", kind
        return x


def simulate(graph, frames, dt=1e-4, late=()):
    """The output [T, B, ...] and the spikes (bool) of every node that fires, for frames [T, B, ...]."""
    late = {*late, *((a, b) for a, b in graph.edges if a.endswith("_reset") and type(graph.nodes[b]).__name__ == "LI")}
    simulator, outs, spikes = Simulator(graph, dt, late), [], {}
    for t, frame in enumerate(frames.double()):
        now = simulator.step(frame, t == 0)
        outs.append(now["output"])
        for name, node in graph.nodes.items():
            if type(node).__name__ in ("Threshold", "LIF", "IF", "CubaLIF"):
                spikes.setdefault(name, []).append(now[name] > 0)
    return torch.stack(outs), {name: torch.stack(s) for name, s in spikes.items()}
