"use strict";
/* One step of DDP on a time line: backward passes, buckets, and the all-reduces that send them. The buckets are those of
   torch's reducer from the second step on; the ring's time is that of bench/formulas.py; one all-reduce at a time, as on
   NCCL's stream. A gradient is ready when its share of the backward pass's operations is done. */

{
  const F = Figure, MIB = 2 ** 20;

  /* Layers in the order of the forward pass: [parameters of each tensor, operations]. */
  function resnet(blocks, bottleneck, classes, pixels) {
    const layers = [];
    const conv = (from, to, kernel, size) => layers.push([[from * to * kernel * kernel], from * to * kernel * kernel * size * size], [[to, to], 0]);
    let size = pixels / 2, channels = 64;
    conv(3, 64, 7, size);
    size /= 2;
    blocks.forEach((count, stage) => {
      const planes = 64 * 2 ** stage, out = bottleneck ? 4 * planes : planes;
      for (let block = 0; block < count; block++) {
        const stride = stage > 0 && block === 0 ? 2 : 1, before = size;
        size /= stride;
        if (bottleneck) { conv(channels, planes, 1, before); conv(planes, planes, 3, size); conv(planes, out, 1, size); }
        else { conv(channels, planes, 3, size); conv(planes, planes, 3, size); }
        if (channels !== out || stride > 1) conv(channels, out, 1, size);
        channels = out;
      }
    });
    layers.push([[classes * channels, classes], classes * channels]);
    return layers;
  }
  function gpt(count, width, context, vocabulary) {
    const layers = [[[vocabulary * width], 0], [[context * width], 0]];
    const linear = (from, to) => layers.push([[from * to, to], from * to]);
    for (let block = 0; block < count; block++) {
      layers.push([[width, width], 0]);
      linear(width, 3 * width); linear(width, width);
      layers.push([[width, width], 0]);
      linear(width, 4 * width); linear(4 * width, width);
    }
    layers.push([[width, width], 0]);  // the output layer shares the embedding's weights
    layers[0][1] = 0;
    return layers;
  }
  const MODELS = {
    resnet18: ["ResNet-18", () => resnet([2, 2, 2, 2], false, 1000, 224)],
    resnet50: ["ResNet-50", () => resnet([3, 4, 6, 3], true, 1000, 224)],
    gpt: ["GPT-2 small (124 M)", () => gpt(12, 768, 1024, 50257)],
  };

  /* Committed record breakdown-20261121-080019-0fa6: medians of the rounds' median steps, in ms. */
  const MEASURED = { step: 326.7, without: 264.3, rounds: 5, where: "ResNet-18 on images of 16 pixels, 2 processes on 2 cores of an Intel Xeon, Gloo" };

  /* Gradients in the order in which backward has them: {nbytes, ready}, ready in seconds from its begin. */
  function gradients(layers, backward, number) {
    const operations = layers.reduce((sum, layer) => sum + layer[1], 0);
    let done = 0;
    const found = [];
    for (const [sizes, own] of [...layers].reverse()) {
      done += own;
      for (const size of [...sizes].reverse()) found.push({ nbytes: size * number, ready: done / operations * backward });
    }
    return found;
  }

  /* A bucket with its cap or more is full; the first has a cap of its own. */
  function buckets(tensors, firstMib, capMib) {
    const made = [[]];
    let filled = 0;
    for (const tensor of tensors) {
      if (filled >= (made.length === 1 ? firstMib : capMib) * MIB) { made.push([]); filled = 0; }
      made[made.length - 1].push(tensor);
      filled += tensor.nbytes;
    }
    return made.map(bucket => ({ nbytes: bucket.reduce((sum, t) => sum + t.nbytes, 0), ready: Math.max(...bucket.map(t => t.ready)), tensors: bucket.length }));
  }

  function sendInTurn(found, begin, shrink, seconds) {
    let free = 0;
    return found.map(bucket => {
      const start = Math.max(free, begin + bucket.ready), nbytes = bucket.nbytes * shrink;
      free = start + seconds(nbytes);
      return { begin: start, end: free, ready: begin + bucket.ready, nbytes };
    });
  }

  function compute(state) {
    const layers = MODELS[state.model][1](), backward = state.backward / 1e3, forward = backward / 2, optimizer = backward / 20;
    const late = state.ranks > 1 ? state.late / 1e3 : 0, alpha = state.alpha / 1e6, beta = 8e-9 / 10 ** state.gbit;
    const tensors = gradients(layers, backward, 4), parameters = tensors.reduce((sum, t) => sum + t.nbytes / 4, 0);
    const found = buckets(tensors, state.first, state.cap);
    const quiet = state.sync === "none" || state.ranks < 2;
    const ring = nbytes => F.formulas.ring_all_reduce_s(nbytes, state.ranks, alpha, beta);
    const ready = state.sync === "after" ? found.map(bucket => ({ ...bucket, ready: backward })) : found;
    const sent = quiet ? [] : sendInTurn(ready, late + forward, state.fp16 ? 0.5 : 1, ring);
    const ends = [0, late].map(offset => offset + forward + backward);
    const arrived = Math.max(0, ...sent.map(bucket => bucket.end));
    const step = (quiet ? ends[1] : Math.max(ends[1], arrived)) + optimizer, without = ends[1] + optimizer;
    return {
      parameters, buckets: found, sent, late, forward, backward, optimizer, ends, step, quiet,
      wire: sent.reduce((sum, bucket) => sum + bucket.end - bucket.begin, 0), exposed: F.formulas.exposed_comm_s(step, without),
      efficiency: (forward + backward + optimizer) / step,
    };
  }

  F.define("timeline", {
    title: "One step of DDP",
    controls: [
      { id: "model", label: "Model", type: "select", value: "resnet50", options: Object.entries(MODELS).map(([key, [label]]) => [key, label]) },
      { id: "backward", label: "Backward pass", type: "range", min: 2, max: 400, value: 43, unit: "ms" },
      { id: "ranks", label: "Ranks", type: "range", min: 1, max: 64, value: 8 },
      { id: "gbit", label: "Link", type: "range", min: -1, max: 3.5, step: 0.1, value: 1.4, show: value => F.number(10 ** value) + " Gbit/s" },
      { id: "alpha", label: "Latency per message", type: "range", min: 1, max: 1000, value: 20, unit: "µs" },
      { id: "cap", label: "Bucket cap", type: "range", min: 1, max: 200, value: 25, unit: "MiB" },
      { id: "first", label: "First bucket", type: "range", min: 1, max: 200, value: 1, unit: "MiB" },
      { id: "late", label: "The last rank starts late by", type: "range", min: 0, max: 100, value: 0, unit: "ms" },
      { id: "sync", label: "Exchange", type: "select", value: "during", options: [["during", "during backward"], ["after", "after backward"], ["none", "none (no_sync)"]] },
      { id: "fp16", label: "send 16 bits", type: "check", value: false },
    ],
    state: { measured: null },
    presets: [
      { label: "ResNet-50, 10 Gbit/s", state: { model: "resnet50", backward: 43, ranks: 8, gbit: 1, cap: 25, first: 1, late: 0, sync: "during", fp16: false, measured: null } },
      { label: "A late rank", state: { model: "resnet50", backward: 43, ranks: 8, gbit: 2, cap: 25, first: 1, late: 40, sync: "during", fp16: false, measured: null } },
      { label: "A small batch", state: { model: "resnet50", backward: 6, ranks: 8, gbit: 1.4, cap: 25, first: 1, late: 0, sync: "during", fp16: false, measured: null } },
      { label: "Measured on a CPU", state: { model: "resnet18", backward: 172, ranks: 2, gbit: 1, alpha: 100, cap: 25, first: 1, late: 0, sync: "during", fp16: false, measured: MEASURED } },
      { label: "One bucket", state: { model: "resnet50", backward: 43, ranks: 8, gbit: 1.4, cap: 200, first: 200, late: 0, sync: "during", fp16: false, measured: null } },
    ],
    compute,
    draw(result, state, width) {
      const narrow = width < 560, left = narrow ? 8 : 96, right = width - 12, lanes = state.ranks > 1 ? ["rank 0", `rank ${state.ranks - 1}`] : ["rank 0"];
      const entries = [["forward", F.COLOURS.sky], ["backward", F.COLOURS.blue], ["all-reduce of a bucket", F.COLOURS.orange, true], ["optimizer", F.COLOURS.green]];
      const head = F.legend(entries, 4, 4, width - 8), rowHeight = narrow ? 54 : 42, top = head.height + 14;
      const longest = Math.max(result.step, state.measured ? state.measured.step / 1e3 : 0) * 1.02;
      const scale = time => left + time / longest * (right - left);
      const bottom = top + (lanes.length + 1) * rowHeight;
      let drawn = head.drawn;
      for (const tick of F.ticks(longest * 1e3, narrow ? 4 : 8)) {
        const x = scale(tick / 1e3);
        drawn += F.line(x, top, x, bottom, { stroke: F.FAINT, stroke_opacity: 0.4 }) + F.text(x, bottom + 16, tick ? F.number(tick) : "0 ms", { text_anchor: tick ? "middle" : "start" });
      }
      const yOf = row => top + row * rowHeight + (narrow ? 20 : 6);
      const name = (words, row) => narrow ? F.text(left, yOf(row) - 4, words) : F.text(left - 8, yOf(row) + 20, words, { text_anchor: "end" });
      lanes.forEach((lane, row) => {
        const y = yOf(row), begin = row ? result.late : 0, turn = begin + result.forward, end = turn + result.backward;
        drawn += name(lane, row);
        drawn += F.bar(scale(begin), y, scale(turn) - scale(begin), 28, F.COLOURS.sky) + F.bar(scale(turn), y, scale(end) - scale(turn), 28, F.COLOURS.blue);
        drawn += F.bar(scale(result.step - result.optimizer), y, scale(result.step) - scale(result.step - result.optimizer), 28, F.COLOURS.green);
        for (const bucket of result.buckets) {
          const x = scale(turn + bucket.ready);
          drawn += F.line(x, y, x, y + 28, { stroke: "#ffffff", stroke_width: 1.5 });
        }
      });
      drawn += name("wire", lanes.length);
      result.sent.forEach((bucket, index) => {
        const y = yOf(lanes.length), wide = scale(bucket.end) - scale(bucket.begin);
        drawn += F.bar(scale(bucket.begin), y, Math.max(wide - 1, 1), 28, F.COLOURS.orange, true);
        if (wide > 20) drawn += F.tag("circle", { cx: scale(bucket.begin) + wide / 2, cy: y + 14, r: 9, fill: "#ffffff" }) + F.text(scale(bucket.begin) + wide / 2, y + 18.5, index + 1, { text_anchor: "middle", fill: "#1a1a1a" });
      });
      if (state.measured) {
        const x = scale(state.measured.step / 1e3);
        drawn += F.path(`M${x.toFixed(1)} ${bottom - 12}l-6 12h12z`, { fill: F.INK, stroke: "none" }) + F.line(x, top, x, bottom, { stroke_dasharray: "2 3" });
        drawn += F.text(right, bottom + 34, "measured", { text_anchor: "end" });
      }
      if (result.exposed > result.step / 200) {
        const x1 = scale(result.ends[1]), x2 = scale(result.step - result.optimizer);
        drawn += F.line(x1, bottom - 4, x2, bottom - 4, { stroke: F.COLOURS.red, stroke_width: 4 });
        drawn += F.text(Math.min(right - 32, Math.max(left + 32, (x1 + x2) / 2)), bottom + 34, "exposed", { text_anchor: "middle", font_weight: "bold" });
      }
      return F.svg(width, bottom + 42, drawn);
    },
    say(result, state) {
      const lines = [];
      if (result.quiet) lines.push(`A step takes ${F.seconds(result.step)}, and nothing is sent.${state.ranks > 1 ? " The replicas move apart unless a later step sends the sum." : ""}`);
      else {
        const count = result.sent.length, last = result.sent[count - 1];
        lines.push(`A step takes ${F.seconds(result.step)}. ${F.bytes(result.parameters * (state.fp16 ? 2 : 4))} of gradients travel in ${count} bucket${count > 1 ? "s" : ""} for ${F.seconds(result.wire)}; ${F.seconds(result.exposed)} of that is exposed (red).`);
        lines.push(`Efficiency: ${Math.round(100 * result.efficiency)} %, the time of one device over the time of this step.`);
        if (state.sync === "during") lines.push(`The last bucket is ready when backward ends and takes ${F.seconds(last.end - last.begin)}: no cap hides it.`);
      }
      if (result.late > 0) lines.push(`${result.quiet ? "Rank 0 does not wait within the step." : `Every rank waits for the last one, ${F.seconds(result.late)} here, and rank 0's profile shows that as communication.`}`);
      if (state.measured) lines.push(`Measured (triangle): ${state.measured.step} ms, and ${state.measured.without} ms without exchange: ${state.measured.where}, n = ${state.measured.rounds} rounds. There the exchange takes cores from the backward pass, which this model leaves out.`);
      return lines;
    },
    measured: MEASURED,
    functions: { layers: model => MODELS[model][1](), gradients, buckets, sendInTurn, compute },
  });
}
