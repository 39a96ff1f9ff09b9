"use strict";
/* What the interactive figures share. A figure is a set of pure functions, so that a test can call them without a page:

   controls          inputs: {id, label, type: range | select | check | text, value, min, max, step, options, unit, show}
   presets           {label, state}: buttons that set several controls
   compute(state)    every number of the figure
   draw(result, state, width)   the picture as SVG text
   say(result, state)           the result in words, a list of lines
   steps(result)     optional: how many steps the reader can go through; state.step is the current one
   atEnd             begin at the last step
   extra(box, state, update)    optional: more inputs than controls; returns a function that shows a new state

   All words are English here. On a Chinese page, ``Figure.say`` translates what is drawn and said (site/phrases.js).

   The alpha-beta model and the other formulas are those of bench/formulas.py. */

const Figure = (() => {
  const all = {};
  const INK = "var(--figure-ink, #1a1a1a)", FAINT = "var(--figure-faint, #8a8a8a)", PAPER = "var(--figure-paper, #ffffff)";
  const COLOURS = {  // Okabe and Ito: told apart by colour-blind readers
    blue: "#0072b2", orange: "#e69f00", green: "#009e73", red: "#d55e00", sky: "#56b4e9", pink: "#cc79a7", yellow: "#f0e442",
  };

  // --- Formulas, as in bench/formulas.py ---------------------------------------------------------------------------

  const formulas = {
    ring_all_reduce_s: (nbytes, ranks, alpha, beta) =>
      2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * beta * nbytes,
    tree_broadcast_s: (nbytes, ranks, alpha, beta) => Math.ceil(Math.log2(ranks)) * (alpha + beta * nbytes),
    received_bytes: (nbytes, ranks, { all_reduces = 0, gathers = 0, scatters = 0 } = {}) =>
      nbytes * (ranks - 1) / ranks * (2 * all_reduces + gathers + scatters),
    bus_bandwidth: (nbytes, seconds, ranks) => nbytes / seconds * 2 * (ranks - 1) / ranks,
    scaling_efficiency: (throughput, base, devices) => throughput / (devices * base),
    exposed_comm_s: (step, without) => step - without,
    gpt_parameters: (layers, width, context, vocabulary) =>
      layers * (12 * width ** 2 + 13 * width) + (2 * vocabulary + context + 2) * width,
  };

  // --- SVG -----------------------------------------------------------------------------------------------------------

  const chinese = typeof Phrases !== "undefined" && (typeof document === "undefined" || document.documentElement.lang.startsWith("zh"));
  const say = words => chinese ? Phrases.say(words) : words;
  const FONT = chinese ? "system-ui, 'PingFang SC', 'Hiragino Sans GB', 'Microsoft YaHei', 'Noto Sans CJK SC', 'Source Han Sans SC', 'WenQuanYi Zen Hei', sans-serif" : "system-ui, sans-serif";

  const escape = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const rounded = value => typeof value === "number" ? +value.toFixed(2) : value;

  function tag(name, attributes, ...content) {
    const pairs = Object.entries(attributes).filter(([, value]) => value !== undefined && value !== null && value !== false);
    const text = pairs.map(([key, value]) => ` ${key.replace(/_/g, "-")}="${escape(rounded(value))}"`).join("");
    return content.length ? `<${name}${text}>${content.join("")}</${name}>` : `<${name}${text}/>`;
  }
  const rect = (x, y, width, height, fill, more = {}) => tag("rect", { x, y, width: Math.max(0, width), height, fill, ...more });
  const line = (x1, y1, x2, y2, more = {}) => tag("line", { x1, y1, x2, y2, stroke: INK, stroke_width: 1, ...more });
  const text = (x, y, words, more = {}) => tag("text", { x, y, fill: INK, font_size: 13, ...more }, escape(say(words)));
  const path = (d, more = {}) => tag("path", { d, fill: "none", stroke: INK, stroke_width: 1.5, ...more });
  /* An arrow along a curve; bend: how far its middle lies to the left of the straight line. */
  function arrow(x1, y1, x2, y2, colour, { bend = 0, width = 1.8, dash } = {}) {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const cx = (x1 + x2) / 2 + bend * (y2 - y1) / length, cy = (y1 + y2) / 2 - bend * (x2 - x1) / length;
    const angle = Math.atan2(y2 - cy, x2 - cx), size = 8;
    const corner = turn => `${rounded(x2 - size * Math.cos(angle + turn))} ${rounded(y2 - size * Math.sin(angle + turn))}`;
    return path(`M${rounded(x1)} ${rounded(y1)}Q${rounded(cx)} ${rounded(cy)} ${rounded(x2)} ${rounded(y2)}`, { stroke: colour, stroke_width: width, stroke_dasharray: dash })
      + path(`M${rounded(x2)} ${rounded(y2)}L${corner(0.4)} ${corner(-0.4)}z`, { fill: colour, stroke: "none" });
  }
  const fits = (words, width, size = 13) => letters(words) * size * 0.56 <= width;
  /* Of a text as it is shown; a Chinese letter is as wide as almost two Latin ones. */
  const letters = words => [...say(String(words))].reduce((sum, letter) => sum + (letter >= "\u2e80" ? 1.85 : 1), 0);

  function svg(width, height, ...content) {
    const hatch = tag("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      line(0, 0, 0, 6, { stroke: "#000000", stroke_opacity: 0.45, stroke_width: 2 }));
    return tag("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${Math.round(width)} ${Math.round(height)}`, width: Math.round(width), height: Math.round(height), font_family: FONT },
      tag("defs", {}, hatch), ...content);
  }
  /* A coloured bar; hatched for a second mark besides the colour. */
  const bar = (x, y, width, height, fill, hatched = false) =>
    rect(x, y, width, height, fill) + (hatched ? rect(x, y, width, height, "url(#hatch)") : "");

  /* Entries of a legend in rows: [[words, colour, hatched], …] → {drawn, height}. */
  function legend(entries, x, y, width) {
    let at = x, row = 0, drawn = "";
    for (const [words, colour, hatched] of entries) {
      const size = 26 + letters(words) * 7.2;
      if (at > x && at + size > x + width) { at = x; row += 1; }
      drawn += bar(at, y + row * 20, 14, 14, colour, hatched) + text(at + 19, y + 12 + row * 20, words);
      at += size + 8;
    }
    return { drawn, height: (row + 1) * 20 };
  }

  /* Round values for an axis from 0 to the largest. */
  function ticks(largest, most = 6) {
    if (!(largest > 0) || !isFinite(largest)) return [0];
    const rough = largest / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999);
    const found = [];
    for (let i = 0; i * step <= largest * 1.0001; i++) found.push(+(i * step).toPrecision(6));
    return found;
  }

  function number(value, digits = 3) {
    if (value === 0) return "0";
    if (!isFinite(value)) return "∞";
    const size = Math.abs(value);
    if (size >= 10 ** digits) return Math.round(value).toLocaleString("en-US");
    return String(+value.toPrecision(digits));
  }
  function bytes(value) {
    for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (value >= size) return `${number(value / size)} ${unit}`;
    return `${number(value)} bytes`;
  }
  function seconds(value) {
    if (value >= 1) return `${number(value)} s`;
    return value >= 1e-3 ? `${number(value * 1e3)} ms` : `${number(value * 1e6)} µs`;
  }

  // --- The page ------------------------------------------------------------------------------------------------------

  const defaults = figure => Object.fromEntries([...figure.controls.map(c => [c.id, c.value]), ...Object.entries(figure.state || {}), ["step", figure.atEnd ? Infinity : 0]]);

  function define(name, figure) {
    all[name] = figure;
    if (typeof document === "undefined") return;
    const start = () => document.querySelectorAll(`[data-figure="${name}"]`).forEach(box => mount(box, name, figure));
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
    else start();
  }

  function element(name, properties = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (["title", "ariaLabel"].includes(key)) made[key] = say(value);
      else if (key in made && !["list", "form", "min", "max", "step", "value"].includes(key)) made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children.map(say));
    return made;
  }

  function mount(box, name, figure) {
    const state = structuredClone(defaults(figure));
    const shown = [], id = control => `figure-${name}-${control}`;
    const form = element("form", { className: "figure-controls", onsubmit: event => event.preventDefault() });
    const drawing = element("div", { className: "figure-drawing" });
    const words = element("div", { className: "figure-words" });
    words.setAttribute("aria-live", "polite");
    for (const control of figure.controls) form.append(inputOf(control));
    const presets = element("div", { className: "figure-buttons" });
    for (const preset of figure.presets || [])
      presets.append(element("button", { type: "button", onclick: () => update(preset.state, true) }, preset.label));
    presets.append(element("button", { type: "button", onclick: () => update(structuredClone(defaults(figure)), true) }, "Reset"));
    const own = element("div", { className: "figure-extra" });
    const player = figure.steps ? playerOf() : null;
    box.replaceChildren(element("p", { className: "figure-title" }, figure.title), presets, form, own, ...(player ? [player.box] : []), drawing, words);
    const showExtra = figure.extra ? figure.extra(own, state, update, element) : () => {};
    let width = drawing.clientWidth;
    new ResizeObserver(() => { if (drawing.clientWidth !== width) { width = drawing.clientWidth; render(); } }).observe(drawing);

    function inputOf(control) {
      const properties = { id: id(control.id), name: control.id };
      let input, output = null;
      if (control.type === "select") {
        input = element("select", properties, ...control.options.map(([value, label]) => element("option", { value }, label)));
      } else if (control.type === "check") {
        input = element("input", { ...properties, type: "checkbox" });
      } else if (control.type === "text") {
        input = element("input", { ...properties, type: "text", autocomplete: "off" });
      } else {
        input = element("input", { ...properties, type: "range", min: control.min, max: control.max, step: control.step || 1 });
        output = element("output", { htmlFor: properties.id });
      }
      const words = (value = state[control.id]) => say(control.show ? control.show(value, state) : `${number(value, 4)}${control.unit ? " " + control.unit : ""}`);
      input.addEventListener("input", () => {
        const value = control.type === "check" ? input.checked : control.type === "range" ? Number(input.value) : input.value;
        update({ [control.id]: value }, control.restarts !== false);
      });
      const line = element("label", { htmlFor: properties.id, className: `figure-${control.type}` });
      if (control.type === "check") line.append(input, " ", say(control.label));
      else line.append(element("span", {}, control.label, ...(output ? [": ", output] : [])), input);
      shown.push(() => {
        if (control.type === "check") input.checked = state[control.id];
        else if (document.activeElement !== input || control.type !== "text") input.value = state[control.id];
        if (output) { output.textContent = words(); input.setAttribute("aria-valuetext", words()); }
        const off = control.when ? !control.when(state) : false;
        input.disabled = off;
        line.classList.toggle("figure-off", off);
      });
      return line;
    }

    function playerOf() {
      const slider = element("input", { type: "range", min: 0, max: 1, id: id("step"), oninput: () => update({ step: Number(slider.value) }, false) });
      const output = element("output", { htmlFor: id("step") });
      let timer = null;
      const play = element("button", { type: "button", onclick: () => timer ? stop() : run() }, "Play");
      const stop = () => { clearInterval(timer); timer = null; play.textContent = say("Play"); };
      const move = by => update({ step: Math.max(0, Math.min(Number(slider.max), state.step + by)) }, false);
      function run() {
        if (state.step >= Number(slider.max)) update({ step: 0 }, false);
        play.textContent = say("Stop");
        timer = setInterval(() => { move(1); if (state.step >= Number(slider.max)) stop(); }, 900);
      }
      const box = element("div", { className: "figure-buttons figure-player" },
        element("button", { type: "button", onclick: () => { stop(); move(-1); } }, "Back"),
        element("button", { type: "button", onclick: () => { stop(); move(1); } }, "Step"), play,
        element("label", { htmlFor: id("step"), className: "figure-range" }, element("span", {}, "Step: ", output), slider));
      return { box, show: (steps) => { slider.max = steps; slider.value = state.step; output.textContent = say(`${state.step} of ${steps}`); } };
    }

    function update(change, restart = true) {
      Object.assign(state, structuredClone(change));
      if (restart && !("step" in change)) state.step = figure.atEnd ? Infinity : 0;
      render();
    }
    function render() {
      const result = figure.compute(state), lines = figure.say(result, state).map(say);
      if (player) {
        const steps = figure.steps(result, state);
        state.step = Math.min(state.step, steps);
        player.show(steps);
      }
      shown.forEach(show => show());
      showExtra(result);
      const space = Math.max(280, Math.min(880, width || drawing.clientWidth || 700));
      drawing.innerHTML = figure.draw(result, state, space).replace(/(id="|url\(#)hatch/g, `$1${name}-hatch`);
      const picture = drawing.querySelector("svg");
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", `${say(figure.title)}${chinese ? "：" : ". "}${lines.join(" ")}`);
      words.replaceChildren(...lines.map((line, index) => element("p", { className: index ? "" : "figure-first" }, line)));
    }
    render();
  }

  /* The picture with the default inputs, for pages that run no script. */
  function still(name, width = 700) {
    const figure = all[name], state = { ...structuredClone(defaults(figure)), ...(figure.still || {}) };
    const drawn = figure.draw(figure.compute(state), state, width);
    return drawn.replace(/<svg[^>]*>/, opening => opening + rect(0, 0, 4000, 4000, "#ffffff"));
  }

  return { all, define, defaults, still, formulas, number, bytes, seconds, escape, say, letters, tag, rect, line, text, path, arrow, fits, svg, bar, legend, ticks, INK, FAINT, PAPER, COLOURS };
})();

if (typeof module !== "undefined") globalThis.Figure = module.exports = Figure;
