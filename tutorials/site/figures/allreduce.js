"use strict";
/* An all-reduce message by message: who sends which chunk to whom, and what it costs by the alpha-beta model. A round ends
   when its slowest message has arrived. Messages of one round that leave the same machine share its link. */

{
  const F = Figure;
  const range = count => [...Array(count).keys()];
  const all = state => range(state.ranks);

  /* Rounds of messages {from, to, chunks, add}: the receiver adds, or replaces what it has. */
  function ringOver(members, chunks) {  // chunks: one list of chunk numbers per member
    const n = members.length, rounds = [];
    for (const add of [true, false]) for (let k = 0; k < n - 1; k++)
      rounds.push(members.map((from, i) => ({ from, to: members[(i + 1) % n], chunks: chunks[(((i - k + (add ? 0 : 1)) % n) + n) % n], add })));
    return rounds;
  }
  function treeOver(members, chunks) {  // to the first member, and back
    const levels = [];
    for (let reach = 1; reach < members.length; reach *= 2)
      levels.push(range(members.length).filter(i => i % (2 * reach) === 0 && i + reach < members.length).map(i => ({ from: members[i + reach], to: members[i], chunks, add: true })));
    return { up: levels, down: [...levels].reverse().map(level => level.map(message => ({ ...message, from: message.to, to: message.from, add: false }))) };
  }
  function doublingOver(members, chunks) {
    const n = members.length, core = 2 ** Math.floor(Math.log2(n)), rounds = [];
    const extra = range(n - core).map(i => ({ from: members[core + i], to: members[i], chunks, add: true }));
    if (extra.length) rounds.push(extra);
    for (let reach = 1; reach < core; reach *= 2)
      rounds.push(range(core).map(i => ({ from: members[i], to: members[i ^ reach], chunks, add: true })));
    if (extra.length) rounds.push(extra.map(m => ({ ...m, from: m.to, to: m.from, add: false })));
    return rounds;
  }

  const machineOf = (rank, state) => state.order === "turns" ? rank % state.machines : Math.floor(rank * state.machines / state.ranks);

  const WAYS = {
    ring: ["ring", state => ringOver(all(state), range(state.ranks).map(i => [i]))],
    collector: ["one rank collects", state => {
      const others = all(state).slice(1), chunks = all(state);
      return [...others.map(from => [{ from, to: 0, chunks, add: true }]), ...others.map(to => [{ from: 0, to, chunks, add: false }])];
    }],
    tree: ["tree", state => { const { up, down } = treeOver(all(state), all(state)); return [...up, ...down]; }],
    doubling: ["doubling", state => doublingOver(all(state), all(state))],
    machines: ["by machines", state => {
      const groups = range(state.machines).map(m => all(state).filter(rank => machineOf(rank, state) === m)).filter(group => group.length);
      const trees = groups.map(group => treeOver(group, all(state))), leaders = groups.map(group => group[0]);
      const together = key => range(Math.max(...trees.map(t => t[key].length))).map(level => trees.flatMap(t => t[key][level] || []));
      const parts = leaders.map((_, i) => all(state).filter(chunk => Math.floor(chunk * leaders.length / state.ranks) === i));
      return [...together("up"), ...ringOver(leaders, parts), ...together("down")];
    }],
  };

  function numbersOf(state) {
    const given = state.numbers.split(/[\s,;]+/).filter(Boolean).map(Number);
    return all(state).map(rank => Number.isFinite(given[rank]) ? given[rank] : rank + 1);
  }

  function compute(state) {
    const numbers = numbersOf(state), rounds = WAYS[state.way][1](state), size = state.megabytes * 1e6, chunk = size / state.ranks;
    const links = { inside: [state.alphaInside / 1e6, 8e-9 / 10 ** state.inside], between: [state.alphaBetween / 1e6, 8e-9 / 10 ** state.between] };
    const sum = numbers.reduce((a, b) => a + b, 0);
    const cells = [numbers.map((value, rank) => all(state).map(() => ({ value, ranks: [rank] })))];
    const sent = all(state).map(() => 0), received = all(state).map(() => 0), left = range(state.machines).map(() => 0);
    let time = 0;
    const times = [];
    for (const round of rounds) {
      const before = cells[cells.length - 1], after = before.map(row => [...row]), leaving = range(state.machines).map(() => 0);
      let longest = 0;
      for (const { from, to, chunks, add } of round) {
        const nbytes = chunks.length * chunk, outside = machineOf(from, state) !== machineOf(to, state);
        sent[from] += nbytes;
        received[to] += nbytes;
        if (outside) { leaving[machineOf(from, state)] += nbytes; left[machineOf(from, state)] += nbytes; }
        else if (nbytes) longest = Math.max(longest, links.inside[0] + links.inside[1] * nbytes);
        for (const c of chunks)
          after[to][c] = add ? { value: before[to][c].value + before[from][c].value, ranks: [...before[to][c].ranks, ...before[from][c].ranks] } : before[from][c];
      }
      for (const nbytes of leaving) if (nbytes) longest = Math.max(longest, links.between[0] + links.between[1] * nbytes);
      time += longest;
      times.push(time);
      cells.push(after);
    }
    return { numbers, rounds, cells, sum, sent, received, left, time, times, size, bus: state.ranks > 1 ? F.formulas.bus_bandwidth(size, time, state.ranks) : 0 };
  }

  const mixed = (share) => {  // from light to dark blue
    const [a, b] = [[222, 235, 247], [0, 114, 178]].map(c => c);
    return `#${a.map((v, i) => Math.round(v + (b[i] - v) * share).toString(16).padStart(2, "0")).join("")}`;
  };

  F.define("allreduce", {
    title: "An all-reduce, message by message",
    controls: [
      { id: "way", label: "Algorithm", type: "select", value: "ring", options: Object.entries(WAYS).map(([key, [label]]) => [key, label]) },
      { id: "ranks", label: "Ranks", type: "range", min: 2, max: 8, value: 4 },
      { id: "machines", label: "Machines", type: "range", min: 1, max: 4, value: 2 },
      { id: "order", label: "Ranks are placed", type: "select", value: "blocks", options: [["blocks", "machine by machine"], ["turns", "on the machines in turn"]] },
      { id: "numbers", label: "Numbers, one per rank", type: "text", value: "1, 2, 3, 4, 5, 6, 7, 8" },
      { id: "megabytes", label: "Tensor", type: "range", min: 0.1, max: 400, step: 0.1, value: 46.8, unit: "MB", restarts: false },
      { id: "inside", label: "Link inside a machine", type: "range", min: -1, max: 3.7, step: 0.1, value: 2.6, show: value => F.number(10 ** value) + " Gbit/s", restarts: false },
      { id: "between", label: "Link between machines", type: "range", min: -1, max: 3.7, step: 0.1, value: 1, show: value => F.number(10 ** value) + " Gbit/s", restarts: false },
      { id: "alphaInside", label: "Latency inside", type: "range", min: 1, max: 500, value: 10, unit: "µs", restarts: false },
      { id: "alphaBetween", label: "Latency between", type: "range", min: 1, max: 500, value: 50, unit: "µs", restarts: false },
    ],
    presets: [
      { label: "Ring over two machines", state: { way: "ring", ranks: 4, machines: 2, order: "blocks", step: 0 } },
      { label: "The same, ranks in turn", state: { way: "ring", ranks: 4, machines: 2, order: "turns", step: 0 } },
      { label: "By machines", state: { way: "machines", ranks: 8, machines: 2, order: "blocks", step: 0 } },
    ],
    still: { step: 2 },
    compute,
    steps: result => result.rounds.length,
    draw(result, state, width) {
      const n = state.ranks, narrow = width < 560, left = narrow ? 64 : 120, arrows = narrow ? 64 : 110, top = 30;
      const cell = Math.min(76, (width - left - arrows - 8) / n), rowHeight = 38, height = top + n * rowHeight + 28;
      const step = Math.min(state.step, result.rounds.length), cells = result.cells[step], next = result.rounds[step] || [];
      const centre = rank => top + rank * rowHeight + 17;
      let drawn = F.text(left + n * cell / 2, 18, narrow ? "chunks" : "chunks of the tensor on each rank", { text_anchor: "middle" });
      range(n).forEach(rank => {
        const machine = machineOf(rank, state), y = top + rank * rowHeight;
        const colour = [F.COLOURS.green, F.COLOURS.orange, F.COLOURS.pink, F.COLOURS.sky][machine];
        if (state.machines > 1) drawn += F.rect(2, y, 6, 34, colour);
        drawn += F.text(12, y + (narrow && state.machines > 1 ? 15 : 22), `rank ${rank}`) + (state.machines > 1 ? (narrow ? F.text(12, y + 30, `mach. ${machine}`, { font_size: 11 }) : F.text(62, y + 22, `mach. ${machine}`, { font_size: 12 })) : "");
        cells[rank].forEach((found, chunk) => {
          const share = (new Set(found.ranks).size - 1) / (n - 1), whole = found.ranks.length === n;
          const going = next.some(m => m.from === rank && m.chunks.includes(chunk));
          drawn += F.rect(left + chunk * cell + 1, y, cell - 3, 34, mixed(share), { stroke: going ? F.COLOURS.red : "none", stroke_width: 3 });
          drawn += F.text(left + chunk * cell + cell / 2 - 0.5, y + 22, F.number(found.value, 4), { text_anchor: "middle", fill: share > 0.5 ? "#ffffff" : "#1a1a1a", font_weight: whole ? "bold" : "normal" });
        });
      });
      const x = left + n * cell + 6;
      const drawnArrows = next.slice(0, 16).map(({ from, to, chunks }) => {
        const outside = machineOf(from, state) !== machineOf(to, state), far = Math.abs(from - to);
        const bend = (to > from ? 1 : -1) * Math.min(arrows * 1.5, 14 + far * (narrow ? 14 : 24));
        return chunks.length ? F.arrow(x, centre(from) + (to > from ? 4 : -4), x, centre(to) + (to > from ? -4 : 4), outside ? F.COLOURS.red : F.INK, { bend, dash: outside ? "5 3" : undefined }) : "";
      });
      drawn += drawnArrows.join("");
      const said = step < result.rounds.length ? `${step ? `After round ${step}.` : "Start."} Red frames: sent in round ${step + 1} of ${result.rounds.length}` : `Complete: every rank holds ${F.number(result.sum, 4)}`;
      drawn += F.text(4, height - 8, narrow && said.length > 46 ? `Red frames: sent in round ${step + 1} of ${result.rounds.length}` : said);
      return F.svg(width, height, drawn);
    },
    say(result, state) {
      const most = Math.max(...result.sent), slow = result.left.slice(0, state.machines);
      const lines = [
        `${WAYS[state.way][0][0].toUpperCase()}${WAYS[state.way][0].slice(1)}: ${result.rounds.length} rounds, ${F.seconds(result.time)} for ${F.number(state.megabytes)} MB. Bus bandwidth: ${F.number(result.bus * 8 / 1e9)} Gbit/s.`,
        `Sent per rank: at most ${F.bytes(most)}, ${F.number(most / result.size)} times the tensor. No algorithm needs less than ${F.number(2 * (state.ranks - 1) / state.ranks)} times, received, on every rank.`,
      ];
      if (state.machines > 1) lines.push(`Over the slow link (dashed arrows) leave ${F.bytes(Math.max(...slow))} per machine, ${F.number(Math.max(...slow) / result.size)} times the tensor.`);
      if (state.step > 0) lines.push(`After round ${state.step}: ${F.seconds(result.times[Math.min(state.step, result.times.length) - 1])}.`);
      return lines;
    },
    functions: { compute },
  });
}
