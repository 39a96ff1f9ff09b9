"use strict";
/* Does a second device pay? A step's time by the alpha-beta model, and the time to a target by the critical batch: steps =
   fewest x (1 + C / B) (McCandlish et al. 2018, https://arxiv.org/abs/1812.06162). Two thirds of a step are the backward
   pass, which may hide the exchange. */

{
  const F = Figure, BACKWARD = 2 / 3;

  function at(state, devices, beta = 8e-9 / 10 ** state.gbit) {
    const share = state.scaling === "strong" ? 1 / devices : 1, work = state.ms / 1e3 * share;
    const batch = state.scaling === "strong" ? state.batch : state.batch * devices;
    const exchange = F.formulas.ring_all_reduce_s(state.megabytes * 1e6, devices, state.alpha / 1e6, beta);
    const exposed = Math.max(0, exchange - state.hidden / 100 * BACKWARD * work);
    const step = work + exposed, critical = 10 ** state.critical;
    return { devices, batch, work, exchange, exposed, step, throughput: batch / step, toTarget: step * (1 + critical / batch) };
  }

  /* All numbers relative to one device. Cost: devices x time. */
  function relative(found, one) {
    const speedup = found.throughput / one.throughput, target = one.toTarget / found.toTarget;
    return {
      ...found, speedup, target, efficiency: F.formulas.scaling_efficiency(found.throughput, one.throughput, found.devices),
      cost: found.devices / speedup, targetCost: found.devices / target,
    };
  }

  /* The slowest link, in Gbit/s, over which ``devices`` are as fast as one; 0 if any is, Infinity if none. */
  function breakEven(state, devices) {
    const one = at(state, 1), gain = gbit => at(state, devices, 8e-9 / gbit).throughput - one.throughput;
    if (gain(1e9) <= 0) return Infinity;
    let low = 1e-9, high = 1e9;
    if (gain(low) > 0) return 0;
    for (let i = 0; i < 100; i++) { const middle = Math.sqrt(low * high); if (gain(middle) > 0) high = middle; else low = middle; }
    return high;
  }

  /* The smallest batch per device from which on ``devices`` are faster, if a step's time grows with the batch. */
  function breakEvenBatch(state, devices) {
    const scaled = factor => ({ ...state, ms: state.ms * factor, batch: state.batch * factor });
    const gain = factor => at(scaled(factor), devices).throughput - at(scaled(factor), 1).throughput;
    let low = 1e-6, high = 1e6;
    if (gain(high) <= 0) return Infinity;
    if (gain(low) > 0) return 0;
    for (let i = 0; i < 100; i++) { const middle = Math.sqrt(low * high); if (gain(middle) > 0) high = middle; else low = middle; }
    return high * state.batch;
  }

  const POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256];

  F.define("pay", {
    title: "Does a second device pay?",
    controls: [
      { id: "ms", label: "Step of one device", type: "range", min: 1, max: 1000, value: 64, unit: "ms" },
      { id: "megabytes", label: "Gradients", type: "range", min: 1, max: 6000, value: 102, unit: "MB" },
      { id: "batch", label: "Batch of one device", type: "range", min: 1, max: 1024, value: 256 },
      { id: "devices", label: "Devices", type: "range", min: 1, max: 8, value: 3, show: value => String(POWERS[value]) },
      { id: "gbit", label: "Link", type: "range", min: -2, max: 3.5, step: 0.1, value: 1, show: value => F.number(10 ** value) + " Gbit/s" },
      { id: "alpha", label: "Latency per message", type: "range", min: 1, max: 1000, value: 20, unit: "µs" },
      { id: "hidden", label: "Backward that hides the exchange", type: "range", min: 0, max: 100, value: 80, unit: "%" },
      { id: "scaling", label: "With more devices", type: "select", value: "weak", options: [["weak", "the batch grows (weak scaling)"], ["strong", "the batch is divided (strong scaling)"]] },
      { id: "critical", label: "Critical batch", type: "range", min: 1, max: 6, step: 0.1, value: 3.3, show: value => F.number(10 ** value) },
    ],
    presets: [
      { label: "ResNet-50 on H100s, 10 Gbit/s", state: { ms: 64, megabytes: 102, batch: 256, gbit: 1, devices: 3, scaling: "weak", hidden: 80, critical: 3.3 } },
      { label: "1.3 billion parameters, 10 Gbit/s", state: { ms: 800, megabytes: 5200, batch: 8, gbit: 1, devices: 3, scaling: "weak", hidden: 80, critical: 3 } },
      { label: "A small batch", state: { ms: 5, megabytes: 102, batch: 8, gbit: 1, devices: 3, scaling: "weak", hidden: 80, critical: 3.3 } },
    ],
    compute(state) {
      const one = at(state, 1), devices = POWERS[state.devices];
      const curve = POWERS.filter(n => n <= Math.max(2, devices)).map(n => relative(at(state, n), one));
      return { one, curve, here: relative(at(state, devices), one), breakEven: breakEven(state, 2), breakEvenBatch: breakEvenBatch(state, 2) };
    },
    draw(result, state, width) {
      const narrow = width < 560, left = 44, right = width - 16, curve = result.curve, most = curve[curve.length - 1].devices;
      const head = F.legend([["ideal", F.FAINT], ["examples per second", F.COLOURS.blue], ["speed to the target", F.COLOURS.red]], 4, 4, width - 8);
      const top = head.height + 18, height = narrow ? 210 : 240, bottom = top + height;
      const low = Math.min(1, ...curve.map(p => Math.min(p.speedup, p.target))), bottomPower = Math.floor(Math.log2(low)), topPower = Math.log2(most);
      const x = devices => left + Math.log2(devices) / Math.log2(most) * (right - left - 10);
      const y = value => bottom - (Math.log2(value) - bottomPower) / (topPower - bottomPower) * height;
      let drawn = head.drawn;
      for (let power = bottomPower; power <= topPower; power++) {
        if (topPower - bottomPower > 9 && power % 2) continue;
        const value = 2 ** power;
        drawn += F.line(left, y(value), right, y(value), { stroke: F.FAINT, stroke_opacity: power ? 0.4 : 1 });
        drawn += F.text(left - 6, y(value) + 4, value < 1 ? `1/${F.number(1 / value)}` : `× ${value}`, { text_anchor: "end" });
      }
      curve.forEach(point => { drawn += F.text(x(point.devices), bottom + 18, point.devices, { text_anchor: "middle" }); });
      drawn += F.text(right, bottom + 36, "devices", { text_anchor: "end" });
      const route = pick => "M" + curve.map(point => `${x(point.devices).toFixed(1)} ${y(pick(point)).toFixed(1)}`).join("L");
      drawn += F.path(route(point => point.devices), { stroke: F.FAINT, stroke_dasharray: "4 4" });
      drawn += F.path(route(point => point.speedup), { stroke: F.COLOURS.blue, stroke_width: 3 }) + F.path(route(point => point.target), { stroke: F.COLOURS.red, stroke_width: 3, stroke_dasharray: "8 3" });
      for (const point of curve) {
        drawn += F.tag("circle", { cx: x(point.devices), cy: y(point.speedup), r: 4.5, fill: F.COLOURS.blue });
        drawn += F.rect(x(point.devices) - 4, y(point.target) - 4, 8, 8, F.COLOURS.red);
      }
      return F.svg(width, bottom + 42, drawn);
    },
    say(result, state) {
      const { here, one } = result, lines = [];
      const plural = here.devices > 1 ? `${here.devices} devices` : "One device";
      lines.push(`${plural}: × ${F.number(here.speedup)} the examples per second, efficiency ${Math.round(100 * here.efficiency)} %. The exchange takes ${F.seconds(here.exchange)}, of which ${F.seconds(here.exposed)} is exposed, in a step of ${F.seconds(here.step)}.`);
      lines.push(`To the same loss: × ${F.number(here.target)} as fast, because a batch of ${F.number(here.batch, 4)} takes ${F.number((1 + 10 ** state.critical / here.batch) / (1 + 10 ** state.critical / one.batch))} times the steps of ${F.number(one.batch, 4)}.`);
      lines.push(`Cost, as device hours: × ${F.number(here.cost)} per epoch, × ${F.number(here.targetCost)} to the target.`);
      const link = result.breakEven === Infinity ? "no link is fast enough, because the latency alone takes too long" : result.breakEven === 0 ? "any link is fast enough" : `the link needs more than ${F.number(result.breakEven)} Gbit/s`;
      const batch = result.breakEvenBatch === Infinity ? "no batch is large enough" : result.breakEvenBatch < 1 ? "a batch of 1 is enough" : `a batch of at least ${F.number(Math.ceil(result.breakEvenBatch))} per device is needed`;
      lines.push(`Two devices beat one in examples per second: with this batch ${link}; over this link ${batch}.`);
      return lines;
    },
    functions: { at, relative, breakEven },
  });
}
