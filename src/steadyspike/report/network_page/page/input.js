// Inputs: a drawing, a picture from a file, an event recording from a file, or a sample that is in the page.
const [channels, height, width] = data.program.shape.length === 3 ? data.program.shape : [1, 1, data.program.shape[0]];

// Bytes of gray or colour pixels to what the network takes.
function prepared(pixels) {
  const { mean, std } = data.facts, frame = new Float32Array(channels * height * width);
  for (let c = 0; c < channels; c++) {
    for (let i = 0; i < height * width; i++) {
      const [r, g, b] = pixels.slice(4 * i, 4 * i + 3);
      const value = (channels === 1 ? 0.299 * r + 0.587 * g + 0.114 * b : [r, g, b][c]) / 255;
      frame[c * height * width + i] = mean ? (value - mean[c]) / std[c] : value;
    }
  }
  return frame;
}

function fromCanvas(canvas) {
  const small = html("canvas");
  small.width = width;
  small.height = height;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(canvas, 0, 0, width, height);
  return [prepared(context.getImageData(0, 0, width, height).data)];
}

// N-MNIST's format: five bytes an event, x, y, polarity and 23 bits of time; y = 240 marks an overflow of the timer.
function framesOfRecording(bytes) {
  const events = [];
  let offset = 0;
  if (bytes.length % 5) throw new Error("is truncated: events have five bytes each");
  for (let i = 0; i < bytes.length; i += 5) {
    const [x, y, a, b, c] = bytes.subarray(i, i + 5);
    if (y === 240) { offset += 1 << 13; continue; }
    if (x >= width || y >= height) throw new Error(`has an event at (${x}, ${y}), outside ${width} x ${height} pixels`);
    events.push([x, y, a >> 7, ((a & 127) << 16 | b << 8 | c) + offset]);
  }
  const steps = data.program.timesteps, frames = Array.from({ length: steps }, () => new Float32Array(channels * height * width));
  const times = events.map((e) => e[3]), first = events.length ? Math.min(...times) : 0, span = events.length ? Math.max(...times) - first : 0;
  const byNumber = data.facts.frames.by === "number";
  const size = Math.max(1, Math.floor((byNumber ? events.length : span) / steps));
  events.forEach(([x, y, p, t], i) => {
    const step = Math.min(steps - 1, Math.floor((byNumber ? i : t - first) / size));
    frames[step][(p * height + y) * width + x] += 1;
  });
  return frames;
}

async function fromFile(file) {
  if (data.program.takesFrames) {
    if (data.facts.frames?.size || channels !== 2) throw new Error("cannot be prepared here: the network takes resized frames");
    return framesOfRecording(new Uint8Array(await file.arrayBuffer()));
  }
  const picture = await createImageBitmap(file);
  const canvas = html("canvas");
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return fromCanvas(canvas);
}

function fromSample(sample) {
  const values = Float32Array.from(table(sample)), size = channels * height * width;
  return Array.from({ length: values.length / size }, (_, t) => values.slice(t * size, (t + 1) * size));
}

function startDrawing(changed) {
  const canvas = byId("drawing"), context = canvas.getContext("2d", { willReadFrequently: true });
  const clear = () => {
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
  };
  let before = null;
  const draw = (to) => {
    context.strokeStyle = "#fff";
    context.lineWidth = canvas.width / 9;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...before);
    context.lineTo(...to);
    context.stroke();
    before = to;
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); before = at(event); draw(before); });
  canvas.addEventListener("pointermove", (event) => { if (before) draw(at(event)); });
  canvas.addEventListener("pointerup", () => { before = null; changed("your drawing", fromCanvas(canvas)); });
  canvas.addEventListener("pointercancel", () => { before = null; });
  byId("clear").addEventListener("click", () => { clear(); changed("an empty drawing", fromCanvas(canvas)); });
  clear();
}
