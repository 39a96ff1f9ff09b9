"use strict";
/* Will it hang? The collectives of each rank are matched by counting, as Gloo does it: the third call of a group on one
   rank belongs to the third call of that group on the others. Both groups contain all ranks. The verdicts over Gloo are
   those that were seen with torch 2.14; those for NCCL follow its documentation. */

{
  const F = Figure;
  const NAMES = { all_reduce: "all_reduce", broadcast: "broadcast", barrier: "barrier", wait: "wait" };
  const range = count => [...Array(count).keys()];

  const call = (op, tensor = "a", group = 1, later = false) => ({ op, tensor, group, later });
  const A = (tensor, group = 1) => call("all_reduce", tensor, group), B = (tensor, group = 1) => call("broadcast", tensor, group);
  const begun = (tensor, group) => call("all_reduce", tensor, group, true), WAIT = call("wait"), BARRIER = call("barrier");

  function label(each) {
    if (each.op === "wait") return "wait for all";
    return each.op === "barrier" ? "barrier()" : `${NAMES[each.op]}(${each.tensor})`;
  }
  const detail = each => each.op === "wait" ? "" : `group ${each.group}${each.later ? ", async" : ""}`;
  const sizeOf = (each, state) => each.op === "barrier" ? 0 : each.tensor === "b" && !state.equal ? 4 : 2;

  function compute(state) {
    const ranks = state.columns.slice(0, Number(state.ranks)), n = ranks.length, checked = state.detail, nccl = state.backend === "nccl";
    const matches = [], at = ranks.map(() => 0), counts = ranks.map(() => ({})), values = ranks.map(() => ({ a: 1, b: 10 }));
    const open = ranks.map(() => []), places = ranks.map(column => column.map(() => null)), trace = [];
    let raised = null, undefinedAt = null, wrong = false;
    const snapshot = () => trace.push({ at: [...at], complete: matches.map(m => m.complete), entered: matches.map(m => m.entered.map(Boolean)), values: structuredClone(values) });

    function enter(rank, index) {
      const each = ranks[rank][index], number = (counts[rank][each.group] = (counts[rank][each.group] || 0) + 1);
      let found = matches.find(m => m.group === each.group && m.number === number);
      if (!found) matches.push(found = { group: each.group, number, entered: ranks.map(() => null), complete: false, problem: null });
      found.entered[rank] = { each, index };
      places[rank][index] = found;
      if (found.entered.every(Boolean)) finish(found);
      return found;
    }
    function finish(match) {
      const calls = match.entered.map(e => e.each), kinds = new Set(calls.map(c => c.op)), sizes = new Set(calls.map(c => sizeOf(c, state)));
      if (kinds.size > 1 || sizes.size > 1) {
        match.problem = kinds.size > 1 ? "kinds" : "sizes";
        if (checked) raised = raised || match;
        else if (match.problem === "sizes" || nccl) undefinedAt = undefinedAt || match;
        return;  // different kinds over Gloo: each rank waits for messages that nobody sends
      }
      match.complete = true;
      if (new Set(calls.map(c => c.tensor)).size > 1 && calls[0].op !== "barrier") { match.problem = "tensors"; wrong = true; }
      if (calls[0].op === "all_reduce") {
        const sum = calls.reduce((total, c, rank) => total + values[rank][c.tensor], 0);
        calls.forEach((c, rank) => { values[rank][c.tensor] = sum; });
      } else if (calls[0].op === "broadcast") {
        const sent = values[0][calls[0].tensor];
        calls.forEach((c, rank) => { values[rank][c.tensor] = sent; });
      }
    }

    snapshot();
    for (let moved = true; moved && !raised && !undefinedAt;) {
      moved = false;
      for (const rank of range(n)) {
        const each = ranks[rank][at[rank]];
        if (!each || raised || undefinedAt) continue;
        let match = places[rank][at[rank]];
        if (each.op === "wait") {
          if (open[rank].every(m => m.complete)) { at[rank] += 1; open[rank] = []; moved = true; snapshot(); }
          continue;
        }
        const fresh = !match;
        if (fresh) { match = enter(rank, at[rank]); moved = true; }
        if (match.complete || (each.later && !checked)) {
          if (each.later) open[rank].push(match);
          at[rank] += 1;
          moved = true;
        }
        if (fresh || moved) snapshot();
      }
    }
    const blocked = range(n).filter(rank => at[rank] < ranks[rank].length);
    const waitsFor = range(n).map(rank => {
      if (!blocked.includes(rank)) return [];
      const each = ranks[rank][at[rank]], waited = each.op === "wait" ? open[rank].filter(m => !m.complete) : [places[rank][at[rank]]].filter(Boolean);
      return [...new Set(waited.flatMap(m => m.problem ? range(n).filter(r => r !== rank) : range(n).filter(r => !m.entered[r])))];
    });
    const groupOrder = ranks.map(column => column.filter(c => c.op !== "wait").map(c => c.group).join(""));
    const crossed = nccl && !blocked.length && new Set(groupOrder).size > 1;
    const verdict = raised ? "raises" : undefinedAt ? "open" : blocked.length ? "hangs" : crossed ? "may hang" : wrong ? "wrong" : "returns";
    const stack = range(n).map(rank => {
      if (!blocked.includes(rank)) return null;
      if (!nccl || checked) return at[rank];
      const barrier = ranks[rank].findIndex((c, i) => i >= at[rank] && c.op === "barrier");
      return barrier >= 0 ? barrier : ranks[rank].length;  // the host goes on to the line that needs a value
    });
    return { ranks, matches, places, trace, values, verdict, blocked, waitsFor, stack, raised, undefinedAt, at: [...at] };
  }

  const VERDICTS = {
    returns: ["Returns, with the right values.", "green"], wrong: ["Returns, with wrong values and without an error.", "orange"],
    hangs: ["Hangs, until the group's timeout.", "red"], raises: ["Raises immediately, on every rank.", "yellow"],
    open: ["Undefined: hangs, raises, or continues with wrong values.", "red"], "may hang": ["May hang: NCCL needs one order of calls over all groups.", "orange"],
  };

  const PROGRAMS = {
    order: [[A("a"), A("b")], [A("b"), A("a")], [A("a"), A("b")]],
    kinds: [[A("a"), B("b")], [B("b"), A("a")], [A("a"), B("b")]],
    groups: [[A("a", 1), A("b", 2)], [A("b", 2), A("a", 1)], [A("a", 1), A("b", 2)]],
    begun: [[begun("a", 1), begun("b", 2), WAIT], [begun("b", 2), begun("a", 1), WAIT], [begun("a", 1), begun("b", 2), WAIT]],
    missing: [[A("a"), A("b")], [A("a")], [A("a")]],
    "if rank == 0": [[A("a"), B("b"), A("a")], [A("a"), A("a")], [A("a"), A("a")]],
  };

  function editor(box, state, update, element) {
    let focus = null;
    const change = (edit, keep) => { focus = keep || null; const columns = structuredClone(state.columns); edit(columns); update({ columns }, true); };
    function move(from, index, to, place) {
      change(columns => { const [taken] = columns[from].splice(index, 1); columns[to].splice(place, 0, taken); });
    }
    const adding = { op: "all_reduce", tensor: "a", group: "1", rank: "all" };
    const choice = (key, words, options) => {
      const input = element("select", { id: `figure-hang-add-${key}`, onchange: () => { adding[key] = input.value; } }, ...options.map(([value, text]) => element("option", { value }, text)));
      return element("label", { htmlFor: input.id, className: "figure-select" }, element("span", {}, words), input);
    };
    const add = element("div", { className: "figure-controls" },
      choice("op", "New call", [["all_reduce", "all_reduce"], ["broadcast", "broadcast from rank 0"], ["barrier", "barrier"], ["async", "all_reduce, async"], ["wait", "wait for all"]]),
      choice("tensor", "of", [["a", "a"], ["b", "b"]]), choice("group", "in group", [["1", "1"], ["2", "2"]]),
      choice("rank", "on", [["all", "all ranks"], ["0", "if rank == 0"], ["1", "if rank == 1"], ["2", "if rank == 2"]]),
      element("button", { type: "button", onclick: () => change(columns => columns.forEach((column, rank) => {
        if (adding.rank !== "all" && Number(adding.rank) !== rank) return;
        column.push(call(adding.op === "async" ? "all_reduce" : adding.op, adding.tensor, Number(adding.group), adding.op === "async"));
      })) }, "Add"));
    const lists = element("div", { className: "figure-lists" });
    box.append(add, lists);

    function drag(event, rank, index) {
      const item = event.currentTarget.closest("li");
      event.preventDefault();
      event.currentTarget.setPointerCapture(event.pointerId);
      item.classList.add("figure-dragged");
      let target = null;
      const over = e => {
        lists.querySelectorAll(".figure-over").forEach(old => old.classList.remove("figure-over"));
        const under = document.elementFromPoint(e.clientX, e.clientY), list = under && under.closest(".figure-lists ol");
        if (!list) { target = null; return; }
        const items = [...list.children].filter(li => li !== item), next = items.findIndex(li => e.clientY < li.getBoundingClientRect().top + li.offsetHeight / 2);
        target = { rank: Number(list.dataset.rank), place: next < 0 ? items.length : next };
        (items[next] || list).classList.add("figure-over");
      };
      const handle = event.currentTarget;
      handle.addEventListener("pointermove", over);
      handle.addEventListener("pointerup", () => target ? move(rank, index, target.rank, target.place) : update({}, false), { once: true });
      handle.addEventListener("pointercancel", () => update({}, false), { once: true });
    }

    return () => {
      const n = Number(state.ranks);
      lists.replaceChildren(...state.columns.slice(0, n).map((column, rank) => {
        const list = element("ol", { ariaLabel: `Calls of rank ${rank}` });
        list.dataset.rank = rank;
        column.forEach((each, index) => {
          const words = `${label(each)}${detail(each) ? " " + detail(each) : ""}`;
          const button = (sign, what, action, off) => {
            const made = element("button", { type: "button", title: what, ariaLabel: `${what}: ${words}, rank ${rank}`, onclick: action, disabled: off }, sign);
            if (focus && focus[0] === rank && focus[1] === index && focus[2] === what && !off) setTimeout(() => made.focus());
            return made;
          };
          const shift = by => () => change(columns => { const [taken] = columns[rank].splice(index, 1); columns[rank].splice(index + by, 0, taken); }, [rank, index + by, by < 0 ? "Earlier" : "Later"]);
          const handle = element("span", { className: "figure-handle", title: "Drag to another place or rank", onpointerdown: event => drag(event, rank, index) }, element("span", { ariaHidden: "true" }, "⠿ "), element("span", {}, words));
          list.append(element("li", {}, handle, element("span", { className: "figure-moves" }, button("↑", "Earlier", shift(-1), index === 0), button("↓", "Later", shift(1), index === column.length - 1),
            button("×", "Remove", () => change(columns => { columns[rank].splice(index, 1); })))));
        });
        return element("div", {}, element("p", { className: "figure-rank" }, `rank ${rank}`), list);
      }));
    };
  }

  F.define("hang", {
    title: "Will it hang?",
    controls: [
      { id: "ranks", label: "Ranks", type: "select", value: "2", options: [["2", "2"], ["3", "3"]] },
      { id: "backend", label: "Backend", type: "select", value: "gloo", options: [["gloo", "Gloo"], ["nccl", "NCCL"]] },
      { id: "detail", label: "TORCH_DISTRIBUTED_DEBUG=DETAIL", type: "check", value: false },
      { id: "equal", label: "a and b have the same size", type: "check", value: true },
    ],
    presets: Object.entries(PROGRAMS).map(([name, columns]) => ({ label: name, state: { columns } })),
    state: { columns: PROGRAMS.groups },
    atEnd: true,
    compute,
    extra: editor,
    steps: result => result.trace.length - 1,
    draw(result, state, width) {
      const n = result.ranks.length, gap = width < 560 ? 22 : 70, column = (width - 8 - gap * (n - 1)) / n, tight = column < 130, boxHeight = tight ? 58 : 42;
      const rowHeight = boxHeight + 8, top = 34;
      const step = Math.min(state.step, result.trace.length - 1), now = result.trace[step], last = step === result.trace.length - 1;
      const longest = Math.max(1, ...result.ranks.map(calls => calls.length)), bottom = top + longest * rowHeight;
      const x = rank => 4 + rank * (column + gap), y = index => top + index * rowHeight;
      let drawn = "", links = "";
      result.matches.forEach((match, number) => {
        const rows = range(n).filter(rank => match.entered[rank] && now.entered[number] && now.entered[number][rank]);
        for (let i = 0; i + 1 < rows.length; i++) {
          const [from, to] = [rows[i], rows[i + 1]], bad = match.problem && rows.length === n;
          links += F.line(x(from) + column, y(match.entered[from].index) + 20, x(to), y(match.entered[to].index) + 20, { stroke: bad ? F.COLOURS.red : F.COLOURS.green, stroke_width: 3, stroke_dasharray: bad ? "6 4" : undefined });
        }
      });
      result.ranks.forEach((calls, rank) => {
        drawn += F.text(x(rank) + column / 2, 18, `rank ${rank}`, { text_anchor: "middle", font_weight: "bold" });
        if (!calls.length) drawn += F.text(x(rank) + column / 2, y(0) + 24, "no call", { text_anchor: "middle" });
        calls.forEach((each, index) => {
          const match = result.places[rank][index], number = result.matches.indexOf(match), entered = match && now.entered[number] && now.entered[number][rank];
          const done = each.op === "wait" ? now.at[rank] > index : entered && now.complete[number];
          const waiting = now.at[rank] === index && (entered || (each.op === "wait" && last)) && !done, problem = entered && match.problem && match.entered.every(Boolean) && now.entered[number].every(Boolean);
          const fill = problem ? F.COLOURS.orange : done ? "#bfe6d8" : waiting ? F.COLOURS.yellow : entered ? "#d6eaf6" : "#ffffff";
          drawn += F.rect(x(rank), y(index), column, boxHeight, fill, { rx: 4, stroke: waiting ? F.COLOURS.red : "#666666", stroke_width: waiting ? 3 : 1 });
          drawn += F.text(x(rank) + 8, y(index) + 18, label(each), { fill: "#1a1a1a" });
          const mark = problem ? (match.problem === "tensors" ? "wrong sum" : "no match") : done ? "done" : waiting ? "waits" : entered ? "begun" : "";
          const second = [detail(each), match && entered ? `no. ${match.number}` : ""].filter(Boolean).join(", ");
          drawn += F.text(x(rank) + 8, y(index) + 35, tight ? detail(each) : second, { fill: "#333333", font_size: 12 }) + F.text(x(rank) + column - 6, y(index) + (tight ? 51 : 35), mark, { fill: "#1a1a1a", font_size: 12, text_anchor: "end", font_weight: "bold" });
        });
        drawn += F.text(x(rank) + column / 2, bottom + 16, `a = ${now.values[rank].a}, b = ${now.values[rank].b}`, { text_anchor: "middle" });
      });
      let height = bottom + 26;
      if (last && result.blocked.length) {
        const base = bottom + 34;
        result.waitsFor.forEach((others, rank) => others.forEach(other => {
          const from = x(rank) + column / 2 + (other > rank ? 12 : -12), to = x(other) + column / 2 + (other > rank ? -12 : 12);
          drawn += F.arrow(from, base + (other > rank ? 8 : 16), to, base + (other > rank ? 8 : 16), F.COLOURS.red, { bend: 12 * Math.abs(other - rank) });
        }));
        drawn += F.text(width / 2, base + (n > 2 ? 46 : 16), "waits for", { text_anchor: "middle", font_size: 12 });
        height = base + (n > 2 ? 54 : 36);
      }
      return F.svg(width, height, links, drawn);
    },
    say(result, state) {
      const n = result.ranks.length, lines = [VERDICTS[result.verdict][0]];
      const line = (rank, index) => index < result.ranks[rank].length ? `call ${index + 1}, ${label(result.ranks[rank][index])}${detail(result.ranks[rank][index]) ? ` in ${detail(result.ranks[rank][index])}` : ""}` : "the first line after the calls that needs a value, such as loss.item()";
      if (result.verdict === "hangs") {
        for (const rank of result.blocked) lines.push(`Rank ${rank} waits for rank ${result.waitsFor[rank].join(" and ")}. Its stack shows ${line(rank, result.stack[rank])}.`);
        const ended = range(n).filter(rank => !result.blocked.includes(rank));
        if (ended.length) lines.push(`Rank ${ended.join(" and ")} has returned.${state.backend === "gloo" ? " If its process ends, the others raise “Connection closed by peer”." : ""}`);
        if (state.detail) lines.push("With DETAIL, the error after the timeout names the rank that is missing.");
        const dead = result.matches.find(match => match.problem === "kinds");
        if (dead) lines.push(`Call ${dead.number} of group ${dead.group} is ${[...new Set(dead.entered.map(e => label(e.each)))].join(" on one rank and ")} on another.`);
      }
      if (result.verdict === "raises") lines.push(`DETAIL compares the calls first: call ${result.raised.number} of group ${result.raised.group} is ${result.raised.entered.map((e, rank) => `${label(e.each)} on rank ${rank}`).join(", ")}.`);
      if (result.verdict === "open") lines.push(`Call ${result.undefinedAt.number} of group ${result.undefinedAt.group} differs in its ${result.undefinedAt.problem === "sizes" ? "size" : "kind"}. DETAIL names it before it starts.`);
      if (result.verdict === "wrong") lines.push("Two calls with the same number have different tensors of equal size. Nothing compares the names, and DETAIL does not see it.");
      if (["returns", "wrong", "may hang"].includes(result.verdict)) lines.push(result.values.map((v, rank) => `Rank ${rank}: a = ${v.a}, b = ${v.b}.`).join(" "));
      if (state.backend === "nccl") lines.push("NCCL: not run here; a call returns when it is queued, so the host continues.");
      return lines;
    },
    functions: { compute, programs: PROGRAMS },
  });
}
