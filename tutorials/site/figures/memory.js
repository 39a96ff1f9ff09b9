"use strict";
/* What one device holds at three moments of a step, and what it sends. Bytes per parameter and the stages: Rajbhandari et
   al. 2020 (https://arxiv.org/abs/1910.02054), sections 3 and 5. Activations in 16 bits without attention matrices: 34
   bytes x tokens x width per layer (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4); twice that in
   fp32. Left out: the allocator's cache, CUDA itself, embeddings' activations, temporary buffers. */

{
  const F = Figure;
  const OPTIMIZERS = { adam: ["Adam", 2], momentum: ["SGD with momentum", 1], sgd: ["SGD", 0] };
  const KINDS = [
    ["weights", F.COLOURS.blue], ["gathered weights", F.COLOURS.sky], ["gradients", F.COLOURS.green], ["buckets", F.COLOURS.yellow],
    ["optimizer state", F.COLOURS.orange], ["activations", F.COLOURS.pink], ["recomputed", F.COLOURS.red],
  ];
  const HATCHED = ["gathered weights", "buckets", "recomputed"];

  /* Bytes per parameter of each kind, before anything is sharded. */
  function perParameter(precision, optimizer) {
    const values = OPTIMIZERS[optimizer][1];
    if (precision === "fp32") return { weights: 4, gradients: 4, "optimizer state": 4 * values };
    if (precision === "bf16") return { weights: 2, gradients: 2, "optimizer state": 2 * values };
    return { weights: 2, gradients: 2, "optimizer state": 4 + 4 * values };  // mixed: fp32 weights are part of the state
  }

  const SHARDED = [[], ["optimizer state"], ["optimizer state", "gradients"], ["optimizer state", "gradients", "weights"]];

  function heldPerParameter(state) {
    const stage = Number(state.stage), group = Math.min(Number(state.group) || state.ranks, state.ranks);
    const whole = perParameter(state.precision, state.optimizer);
    const held = Object.fromEntries(Object.entries(whole).map(([kind, size]) => [kind, SHARDED[stage].includes(kind) ? size / group : size]));
    // DDP's buckets are a second copy of the gradients, unless the gradients are views of them
    held.buckets = stage < 2 && state.ranks > 1 && !state.view ? whole.gradients : 0;
    held["gathered weights"] = stage === 3 && group > 1 ? 2 * whole.weights / state.layers : 0;  // one block and the next
    return held;
  }

  function activations(state) {
    const perLayer = (state.precision === "fp32" ? 68 : 34) * state.batch * state.sequence * state.width;
    const input = (state.precision === "fp32" ? 4 : 2) * state.batch * state.sequence * state.width;
    const every = Math.min(state.every, state.layers);
    if (!every) return { kept: perLayer * state.layers, recomputed: 0 };
    return { kept: input * Math.ceil(state.layers / every), recomputed: perLayer * every };
  }

  function moments(state, parameters) {
    const each = heldPerParameter(state), sizes = Object.fromEntries(Object.entries(each).map(([kind, size]) => [kind, size * parameters]));
    const { kept, recomputed } = activations(state);
    const always = { weights: sizes.weights, buckets: sizes.buckets, "optimizer state": sizes["optimizer state"] };
    const views = Number(state.stage) < 2 && state.ranks > 1 && state.view;  // gradients that are never freed
    const gathered = sizes["gathered weights"];
    const begin = { ...always, gradients: views ? sizes.gradients : 0, "gathered weights": gathered, activations: kept, recomputed };
    const end = { ...always, gradients: sizes.gradients, "gathered weights": gathered, activations: 0, recomputed };
    return {
      "end of forward": { ...always, gradients: views ? sizes.gradients : 0, "gathered weights": gathered, activations: kept, recomputed: 0 },
      "peak of backward": total(begin) >= total(end) ? begin : end,
      "optimizer step": { ...always, gradients: sizes.gradients, "gathered weights": 0, activations: 0, recomputed: 0 },
    };
  }
  const total = sizes => Object.values(sizes).reduce((sum, size) => sum + size, 0);
  const peak = (state, parameters) => Math.max(...Object.values(moments(state, parameters)).map(total));

  function sent(state, parameters) {
    const whole = perParameter(state.precision, state.optimizer), stage = Number(state.stage);
    const group = stage ? Math.min(Number(state.group) || state.ranks, state.ranks) : state.ranks;
    const weights = whole.weights * parameters, gradients = whole.gradients * parameters;
    if (!stage) return F.formulas.received_bytes(gradients, group, { all_reduces: 1 });
    const shared = F.formulas.received_bytes(gradients, group, { scatters: 1 }) + F.formulas.received_bytes(weights, group, { gathers: stage === 3 ? 2 : 1 });
    return shared + F.formulas.received_bytes(gradients / group, state.ranks / group, { all_reduces: 1 });  // between groups
  }

  /* The number of parameters at which the peak is ``limit`` bytes; 0 if the activations alone are more. */
  function largest(state, limit) {
    let low = 0, high = 1e13;
    if (peak(state, 0) > limit) return 0;
    for (let i = 0; i < 80; i++) { const middle = (low + high) / 2; if (peak(state, middle) <= limit) low = middle; else high = middle; }
    return low;
  }

  const powers = most => [...Array(most + 1).keys()].map(k => [String(2 ** k), String(2 ** k)]);
  const parametersOf = state => 10 ** state.size;

  F.define("memory", {
    title: "What does a device hold?",
    controls: [
      { id: "size", label: "Parameters", type: "range", min: 6, max: 11.5, step: 0.05, value: 9, show: value => F.number(10 ** value / 1e6) + " million" },
      { id: "ranks", label: "Devices", type: "range", min: 1, max: 64, value: 4 },
      { id: "optimizer", label: "Optimizer", type: "select", value: "adam", options: Object.entries(OPTIMIZERS).map(([key, [label]]) => [key, label]) },
      { id: "precision", label: "Precision", type: "select", value: "fp32", options: [["fp32", "fp32"], ["mixed", "mixed: 16 bits, fp32 master weights"], ["bf16", "bf16 alone"]] },
      { id: "stage", label: "Sharded", type: "select", value: "0", options: [["0", "nothing (DDP)"], ["1", "optimizer state (ZeRO-1)"], ["2", "and gradients (ZeRO-2)"], ["3", "and weights (ZeRO-3, FSDP)"]] },
      { id: "group", label: "Devices that share one copy", type: "select", value: "0", options: [["0", "all"], ...powers(5).slice(1).map(([v]) => [v, `${v} (HSDP)`])], when: state => state.stage !== "0" },
      { id: "view", label: "gradients are views of the buckets", type: "check", value: false, when: state => Number(state.stage) < 2 },
      { id: "batch", label: "Sequences per device", type: "range", min: 1, max: 64, value: 1 },
      { id: "sequence", label: "Tokens per sequence", type: "range", min: 128, max: 8192, step: 128, value: 1024 },
      { id: "width", label: "Width", type: "range", min: 256, max: 8192, step: 256, value: 1536 },
      { id: "layers", label: "Layers", type: "range", min: 1, max: 96, value: 48 },
      { id: "every", label: "Recompute every", type: "range", min: 0, max: 12, value: 0, show: value => value ? `${value} layer${value > 1 ? "s" : ""}` : "nothing" },
    ],
    presets: [
      { label: "GPT-2 XL, DDP", state: { size: 9.2, ranks: 8, stage: "0", precision: "mixed", layers: 48, width: 1600, sequence: 1024, batch: 4, every: 0, group: "0", optimizer: "adam" } },
      { label: "The same, FSDP", state: { size: 9.2, ranks: 8, stage: "3", precision: "mixed", layers: 48, width: 1600, sequence: 1024, batch: 4, every: 1, group: "0", optimizer: "adam" } },
      { label: "7 billion on 64", state: { size: 9.85, ranks: 64, stage: "3", precision: "mixed", layers: 32, width: 4096, sequence: 4096, batch: 1, every: 1, group: "8", optimizer: "adam" } },
    ],
    compute(state) {
      const parameters = parametersOf(state), found = moments(state, parameters);
      return {
        parameters, moments: found, peak: Math.max(...Object.values(found).map(total)), sent: sent(state, parameters),
        perParameter: heldPerParameter(state), largest: { 24: largest(state, 24e9), 80: largest(state, 80e9) }, activations: activations(state),
      };
    },
    draw(result, state, width) {
      const names = Object.keys(result.moments), narrow = width < 560, left = narrow ? 8 : 130, right = width - 14;
      const used = KINDS.filter(([kind]) => names.some(name => result.moments[name][kind] > 0));
      const entries = used.map(([kind, colour]) => [kind, colour, HATCHED.includes(kind)]);
      const head = F.legend(entries, 4, 4, width - 8), rowHeight = narrow ? 62 : 46, top = head.height + 24;
      const bottom = top + names.length * rowHeight, most = Math.max(result.peak * (narrow ? 1.34 : 1.2), 1);
      const scale = size => left + size / most * (right - left);
      let drawn = head.drawn;
      for (const tick of F.ticks(most / 1e9, narrow ? 4 : 7)) {
        const x = scale(tick * 1e9);
        drawn += F.line(x, top, x, bottom, { stroke: F.FAINT, stroke_opacity: 0.4 }) + F.text(x, bottom + 16, F.number(tick), { text_anchor: "middle" });
      }
      drawn += F.text(right, bottom + 34, "GB on each device", { text_anchor: "end" });
      for (const limit of [24, 80]) if (limit * 1e9 < most) {
        drawn += F.line(scale(limit * 1e9), top - 4, scale(limit * 1e9), bottom, { stroke: F.COLOURS.red, stroke_width: 2, stroke_dasharray: "6 3" });
        drawn += F.text(scale(limit * 1e9), top - 6, `${limit} GB`, { font_size: 12, text_anchor: "middle" });
      }
      names.forEach((name, row) => {
        const y = top + row * rowHeight + (narrow ? 22 : 6), sizes = result.moments[name];
        drawn += narrow ? F.text(left, y - 6, name) : F.text(left - 8, y + 20, name, { text_anchor: "end" });
        let at = 0;
        for (const [kind, colour] of used) {
          drawn += F.bar(scale(at), y, scale(at + sizes[kind]) - scale(at), 30, colour, HATCHED.includes(kind));
          at += sizes[kind];
        }
        drawn += F.text(scale(at) + 6, y + 20, F.bytes(at), { font_weight: "bold", stroke: F.PAPER, stroke_width: 4, paint_order: "stroke" });
      });
      return F.svg(width, bottom + 42, drawn);
    },
    say(result, state) {
      const each = total(result.perParameter) - result.perParameter["gathered weights"];
      const fit = limit => result.largest[limit] ? `${F.number(result.largest[limit] / 1e6)} million` : "none, because the activations alone are more";
      const lines = [
        `Peak: ${F.bytes(result.peak)} on each device. Between two steps, a parameter takes ${F.number(each)} bytes there, with its gradient.`,
        `Received per step by each device: ${F.bytes(result.sent)}, ${F.number(result.sent / result.parameters)} bytes per parameter.`,
        `Largest model with these activations: in 24 GB ${fit(24)}, in 80 GB ${fit(80)}.`,
      ];
      if (state.every) lines.push(`Recomputation keeps ${F.bytes(result.activations.kept)} of activations and computes ${F.bytes(result.activations.recomputed)} again at a time; it costs about one more forward pass.`);
      if (state.stage === "1") lines.push("torch's ZeroRedundancyOptimizer keeps DDP's all-reduce and sends the weights in addition: 1.5 times the bytes of DDP.");
      const group = Number(state.group);
      if (state.stage !== "0" && group && state.ranks % group) lines.push(`${state.ranks} devices cannot be divided into groups of ${group}.`);
      return lines;
    },
    functions: { perParameter, heldPerParameter, sent, largest, peak },
  });
}
