// The network: loops over pixels and channels on typed arrays. All neurons compute in whole numbers, which a double holds
// exactly, so that every browser emits the spikes of the integer network in Python.
const TABLES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
const DECAY = 4096;

function table(constant) {
  if (!constant) return null;
  const bytes = Uint8Array.from(atob(constant.data), (c) => c.charCodeAt(0));
  const values = new TABLES[constant.type](bytes.buffer);
  values.rows = constant.shape[0];
  return values;
}

// The nearest whole number, the even one of two.
function nearest(value) {
  const below = Math.floor(value), rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}

class Network {
  constructor(program) {
    this.program = program;
    this.buffers = new Map();
    this.layers = [];
    for (const op of program.operations) {
      const out = op.op === "combine" ? op.out.buffer : op.out;
      this.make(out);
      if (op.op !== "layer") continue;
      for (const key of ["constant", "gain", "bias"]) op[key] = table(op[key]);
      for (const term of op.terms) {
        if (term.edge) term.weight = table(term.weight); else term.rows = table(term.rows);
      }
      if (!op.neurons) continue;
      for (const key of ["threshold", "keep", "gain", "start"]) op.neurons[key] = table(op.neurons[key]);
      const size = op.out.grid[0] * op.out.grid[1] * op.out.grid[2];
      op.potential = new Float64Array(size);
      op.membrane = new Float64Array(size);
      if (op.out.kind === "bits") this.layers.push(op);
    }
    this.start();
  }

  make(buffer) {
    if (this.buffers.has(buffer.name)) return;
    const size = buffer.grid[0] * buffer.grid[1] * buffer.grid[2];
    this.buffers.set(buffer.name, buffer.kind === "bits" ? new Uint8Array(size) : new Float64Array(size));
  }

  source(buffer) { return buffer.kind === "input" ? this.frame : this.buffers.get(buffer.name); }

  start() {
    this.time = 0;
    this.frame = null;
    for (const op of this.program.operations) {
      if (!op.neurons) continue;
      const { start } = op.neurons, channels = op.out.grid[0], size = op.potential.length;
      for (let i = 0; i < size; i++) {
        op.potential[i] = start.length === 1 ? start[0] : start.length === channels ? start[i % channels] : start[i];
      }
    }
  }

  // One time step. frame: a new image or frame, or null for the image of the step before. Returns scores, and counts
  // accumulates (acs) and multiply-accumulates (macs).
  step(frame) {
    this.acs = this.macs = 0;
    if (frame) this.frame = frame;
    this.program.operations.forEach((op, i) => {
      if (i < this.program.stills && !frame) return;
      this.macs += this.program.macs[i];
      if (op.op === "layer") this.layer(op);
      else if (op.op === "pool") this.pool(op);
      else this.combine(op);
    });
    this.time += 1;
    return Float64Array.from(this.buffers.get(this.program.output), (v) => v * this.program.scale);
  }

  layer(op) {
    const [channels, height, width] = op.out.grid, out = this.buffers.get(op.out.name), sum = new Float64Array(channels);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const pixel = y * width + x, from = op.constant.rows > 1 ? pixel * channels : 0;
        for (let c = 0; c < channels; c++) sum[c] = op.constant[from + c];
        for (const term of op.terms) {
          if (term.edge) this.edge(term, pixel, channels, sum); else this.synapse(term, y, x, sum);
        }
        if (op.gain) this.scaled(op, sum);
        for (let c = 0; c < channels; c++) {
          if (op.relu && sum[c] < 0) sum[c] = 0;
          if (op.rescale !== null) sum[c] = nearest(sum[c] * op.rescale);
        }
        if (op.neurons) this.fire(op, pixel, sum, out);
        else for (let c = 0; c < channels; c++) out[pixel * channels + c] = sum[c];
      }
    }
  }

  scaled(op, sum) {
    const at = (values) => (values.rows > 1 ? this.time * sum.length : 0);
    for (let c = 0; c < sum.length; c++) {
      sum[c] = sum[c] * op.gain[at(op.gain) + c] + (op.bias ? op.bias[at(op.bias) + c] : 0);
    }
  }

  edge(term, pixel, channels, sum) {
    const values = this.source(term.source), weight = term.weight, spikes = term.source.kind === "bits" || term.source.kind === "counts";
    for (let c = 0; c < channels; c++) {
      const value = values[pixel * channels + c];
      if (value === 0) continue;
      const w = !weight ? 1 : weight.length === 1 ? weight[0] : weight.rows > 1 ? weight[pixel * channels + c] : weight[c];
      sum[c] += w * value;
      if (spikes) this.acs += value;
    }
  }

  synapse(term, y, x, sum) {
    const values = this.source(term.source), { rows, groups } = term;
    const [channels, height, width] = term.size, [high, wide] = term.kernel, [sc, sy, sx] = term.strides;
    const outs = sum.length / groups, perGroup = channels / groups;
    const spikes = term.source.kind === "bits" || term.source.kind === "counts";
    for (let ky = 0; ky < high; ky++) {
      const row = y * term.stride[0] - term.padding[0] + ky * term.dilation[0];
      if (row < 0 || row >= height) continue;
      for (let kx = 0; kx < wide; kx++) {
        const column = x * term.stride[1] - term.padding[1] + kx * term.dilation[1];
        if (column < 0 || column >= width) continue;
        const base = row * sy + column * sx, tap = (ky * wide + kx) * channels;
        for (let k = 0; k < channels; k++) {
          const value = values[base + k * sc];
          if (value === 0) continue;
          const weights = (tap + k) * outs, to = groups === 1 ? 0 : Math.floor(k / perGroup) * outs;
          if (value === 1) for (let o = 0; o < outs; o++) sum[to + o] += rows[weights + o];
          else for (let o = 0; o < outs; o++) sum[to + o] += value * rows[weights + o];
          if (spikes) this.acs += value * outs;
        }
      }
    }
  }

  fire(op, pixel, sum, out) {
    const { threshold, keep, gain, reset, strict, emit } = op.neurons, channels = sum.length;
    for (let c = 0; c < channels; c++) {
      const i = pixel * channels + c, v = threshold[threshold.length > 1 ? c : 0];
      const m = Math.trunc((keep[keep.length > 1 ? c : 0] * op.potential[i] + gain[gain.length > 1 ? c : 0] * sum[c]) / DECAY);
      const spike = strict ? m > v : m >= v;
      op.membrane[i] = m;
      op.potential[i] = !spike || reset === "none" ? m : reset === "soft" ? m - v : 0;
      out[i] = emit === "potential" ? m : spike ? 1 : 0;
    }
  }

  pool(op) {
    const [channels, height, width] = op.source.grid, [, outHeight, outWidth] = op.out.grid;
    const values = this.source(op.source), out = this.buffers.get(op.out.name), best = op.takes === "max";
    for (let y = 0; y < outHeight; y++) {
      for (let x = 0; x < outWidth; x++) {
        const to = (y * outWidth + x) * channels;
        for (let c = 0; c < channels; c++) {
          let total = best ? -Infinity : 0;
          for (let ky = 0; ky < op.kernel[0]; ky++) {
            const row = y * op.stride[0] - op.padding[0] + ky * op.dilation[0];
            if (row < 0 || row >= height) continue;
            for (let kx = 0; kx < op.kernel[1]; kx++) {
              const column = x * op.stride[1] - op.padding[1] + kx * op.dilation[1];
              if (column < 0 || column >= width) continue;
              const value = values[(row * width + column) * channels + c];
              total = best ? Math.max(total, value) : total + value;
            }
          }
          out[to + c] = best ? total : total * op.factor;
        }
      }
    }
  }

  combine(op) {
    const out = this.buffers.get(op.out.buffer.name), axes = op.sizes.length, free = axes - op.reduced;
    const operands = op.operands.map((o) => this.source(o.buffer));
    const walk = (axis, to, from, total) => {
      if (axis === axes) {
        const product = operands.reduce((p, values, i) => p * values[from[i]], 1);
        return total + (op.complement ? 1 - product : product);
      }
      const inner = axis >= free;
      for (let i = 0; i < op.sizes[axis]; i++) {
        const next = from.map((place, k) => place + i * op.operands[k].strides[axis]);
        const place = to + i * op.out.strides[axis];
        if (inner) total = walk(axis + 1, place, next, total);
        else if (axis + 1 === free) out[place] = walk(axis + 1, place, next, 0) * op.factor;
        else walk(axis + 1, place, next, 0);
      }
      return total;
    };
    walk(0, op.out.base, op.operands.map((o) => o.base), 0);
  }
}

// Runs all steps of an input and keeps what they showed. frames: one per step, or a single image.
function runThrough(network, frames, steps) {
  network.start();
  const seen = [];
  let total = null;
  for (let t = 0; t < steps; t++) {
    const scores = network.step(network.program.takesFrames ? frames[t] : t === 0 ? frames[0] : null);
    total = total ? total.map((v, i) => v + scores[i]) : scores.slice();
    seen.push({
      scores, mean: total.map((v) => v / (t + 1)), acs: network.acs, macs: network.macs,
      spikes: network.layers.map((op) => network.buffers.get(op.out.name).slice()),
      membranes: network.layers.map((op) => op.membrane.slice()),
    });
  }
  return seen;
}

function softmax(scores) {
  const top = Math.max(...scores), powers = Array.from(scores, (v) => Math.exp(v - top));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
}
