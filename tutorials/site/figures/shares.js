"use strict";
/* Who reads which image: N ranks, several epochs, and what an evaluation over these shares prints. The padding and the
   dropping are those of torch.utils.data.DistributedSampler; its order is torch's randperm and here another one. */

{
  const F = Figure;
  const range = count => [...Array(count).keys()];

  function shuffled(count, seed) {  // Fisher and Yates with a small generator of its own
    const order = range(count);
    let bits = (seed * 2654435761 + 12345) >>> 0;
    for (let i = count - 1; i > 0; i--) {
      bits = (Math.imul(bits ^ (bits >>> 15), 2246822519) + 3266489917) >>> 0;
      const j = bits % (i + 1);
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  /* torch's DistributedSampler: padded with images from the begin, or cut, and then every N-th. */
  function distributed(order, ranks, drop) {
    const count = order.length, each = drop && count % ranks ? Math.ceil((count - ranks) / ranks) : Math.ceil(count / ranks);
    const total = Math.max(0, each) * ranks, padded = range(total).map(i => order[i % count]);
    return range(ranks).map(rank => padded.filter((_, i) => i % ranks === rank));
  }

  const SAMPLERS = {
    distributed: ["DistributedSampler", (orders, ranks) => range(ranks).map(rank => distributed(orders[rank], ranks, false)[rank])],
    drop: ["DistributedSampler, drop_last", (orders, ranks) => range(ranks).map(rank => distributed(orders[rank], ranks, true)[rank])],
    nth: ["every N-th image, no padding", (orders, ranks) => range(ranks).map(rank => orders[rank].filter((_, i) => i % ranks === rank))],
    blocks: ["blocks, no padding", (orders, ranks) => {
      const count = orders[0].length, end = rank => Math.floor(count / ranks) * rank + Math.min(rank, count % ranks);
      return range(ranks).map(rank => orders[rank].slice(end(rank), end(rank + 1)));
    }],
    none: ["none: all images on every rank", (orders, ranks) => range(ranks).map(rank => orders[rank])],
  };

  function sharesOf(state, epoch) {
    const { images, ranks } = state;
    const orders = range(ranks).map(rank => {
      if (!state.shuffle) return range(images);
      return shuffled(images, 7 + (state.setEpoch ? epoch : 0) + (state.seeds === "rank" ? 101 * rank : 0));
    });
    return SAMPLERS[state.sampler][1](orders, ranks);
  }

  function streams(state) {  // a name per random stream of augmentation, by rank and worker
    const own = state.streams === "rank", kept = state.generator === "kept";
    const names = new Map();
    return range(state.ranks).map(rank => range(Math.max(1, state.workers)).map(worker => {
      const key = `${own ? rank : 0} ${kept ? 0 : worker}`;
      if (!names.has(key)) names.set(key, String.fromCharCode(65 + names.size));
      return names.get(key);
    }));
  }

  function compute(state) {
    const epochs = range(state.epochs).map(epoch => sharesOf(state, epoch));
    const counts = range(state.images).map(image => epochs.map(shares => shares.map(share => share.filter(i => i === image).length)));
    const perEpoch = counts.map(found => found.map(ranks => ranks.reduce((a, b) => a + b, 0)));
    const never = range(state.images).filter(image => perEpoch[image].every(count => count === 0));
    const wrong = new Set(state.wrong.split(/[\s,;]+/).filter(Boolean).map(Number));
    const right = share => share.filter(image => !wrong.has(image)).length;
    const shares = epochs[0], read = shares.reduce((sum, share) => sum + share.length, 0), rates = shares.filter(share => share.length).map(share => right(share) / share.length);
    return {
      epochs, counts, perEpoch, never, wrong, shares,
      accuracy: {
        right: 100 * right(range(state.images)) / state.images,
        summed: read ? 100 * shares.reduce((sum, share) => sum + right(share), 0) / read : NaN,
        mean: rates.length ? 100 * rates.reduce((a, b) => a + b, 0) / rates.length : NaN,
      },
      same: state.epochs > 1 && epochs.every(each => JSON.stringify(each) === JSON.stringify(epochs[0])),
      uneven: new Set(shares.map(share => share.length)).size > 1,
      streams: streams(state),
    };
  }

  F.define("shares", {
    title: "Who reads what?",
    controls: [
      { id: "images", label: "Images", type: "range", min: 4, max: 32, value: 10 },
      { id: "ranks", label: "Ranks", type: "range", min: 1, max: 6, value: 4 },
      { id: "epochs", label: "Epochs", type: "range", min: 1, max: 4, value: 2 },
      { id: "sampler", label: "Sampler", type: "select", value: "distributed", options: Object.entries(SAMPLERS).map(([key, [label]]) => [key, label]) },
      { id: "shuffle", label: "shuffle", type: "check", value: false },
      { id: "setEpoch", label: "call set_epoch", type: "check", value: true, when: state => state.shuffle },
      { id: "seeds", label: "Sampler's seed", type: "select", value: "same", options: [["same", "equal on all ranks"], ["rank", "one per rank"]], when: state => state.shuffle },
      { id: "wrong", label: "Images that the model gets wrong", type: "text", value: "0, 1" },
      { id: "workers", label: "Workers per rank", type: "range", min: 1, max: 4, value: 2 },
      { id: "streams", label: "Seed of the random transforms", type: "select", value: "same", options: [["same", "equal on all ranks"], ["rank", "seed + rank"]] },
      { id: "generator", label: "Their generator", type: "select", value: "torch", options: [["torch", "torch's own, per worker"], ["kept", "one that the data set keeps"]] },
    ],
    presets: [
      { label: "Padding", state: { images: 10, ranks: 4, sampler: "distributed", shuffle: false, wrong: "0, 1" } },
      { label: "No set_epoch", state: { images: 12, ranks: 3, epochs: 3, sampler: "distributed", shuffle: true, setEpoch: false, seeds: "same" } },
      { label: "A seed per rank", state: { images: 12, ranks: 3, epochs: 1, sampler: "distributed", shuffle: true, setEpoch: true, seeds: "rank" } },
      { label: "No sampler", state: { images: 12, ranks: 3, epochs: 1, sampler: "none", shuffle: false } },
    ],
    compute,
    draw(result, state, width) {
      const left = 64, top = 24, cell = Math.min(40, (width - left - 6) / state.images), rowHeight = 24;
      const small = cell < 18;
      let y = top, drawn = "";
      range(state.images).forEach(image => {
        const wrong = result.wrong.has(image);
        if (!small || image % 2 === 0) drawn += F.text(left + (image + 0.5) * cell, 16, image, { text_anchor: "middle", font_size: small ? 11 : 13, font_weight: wrong ? "bold" : "normal", text_decoration: wrong ? "underline" : undefined });
      });
      range(state.epochs).forEach(epoch => {
        drawn += F.text(4, y + 16, `epoch ${epoch}`, { font_weight: "bold" });
        range(state.images).forEach(image => {
          const count = result.perEpoch[image][epoch], x = left + image * cell;
          const colour = count === 1 ? F.COLOURS.sky : count ? F.COLOURS.orange : "#ffffff";
          drawn += F.rect(x + 1, y + 2, cell - 2, rowHeight - 4, colour, count === 0 ? { stroke: F.COLOURS.red, stroke_width: 2, stroke_dasharray: "3 2" } : {}) + F.text(x + cell / 2, y + 17, count, { text_anchor: "middle", fill: "#1a1a1a", font_size: small ? 11 : 13 });
        });
        y += rowHeight;
        range(state.ranks).forEach(rank => {
          drawn += F.text(4, y + 14, `rank ${rank}`, { font_size: 12 });
          range(state.images).forEach(image => {
            const count = result.counts[image][epoch][rank], x = left + (image + 0.5) * cell;
            if (count) drawn += F.tag("circle", { cx: x, cy: y + 10, r: Math.min(6, cell / 3), fill: count > 1 ? F.COLOURS.orange : F.COLOURS.blue });
            else drawn += F.tag("circle", { cx: x, cy: y + 10, r: 1, fill: F.FAINT });
          });
          y += 20;
        });
        y += 10;
      });
      const head = F.legend([["read once", F.COLOURS.sky], ["more than once", F.COLOURS.orange]], 4, y, width - 8);
      drawn += head.drawn;
      y += head.height + 4;
      for (const words of ["0 in a dashed frame: never read.", "Underlined: the model gets it wrong."]) { drawn += F.text(4, y + 14, words); y += 20; }
      y += 10;
      drawn += F.text(4, y + 12, "Random streams", { font_weight: "bold" });
      const across = state.ranks * (Math.max(1, state.workers) + 0.6), side = Math.min(22, (width - 10) / across);
      result.streams.forEach((row, rank) => row.forEach((name, worker) => {
        const x = 4 + (rank * (row.length + 0.6) + worker) * side;
        drawn += F.rect(x, y + 20, side - 2, 20, Object.values(F.COLOURS)[(name.charCodeAt(0) - 65) % 7], { fill_opacity: 0.45 }) + F.text(x + side / 2 - 1, y + 35, name, { text_anchor: "middle", font_size: side < 16 ? 10 : 13 });
        if (!worker) drawn += F.text(x, y + 56, side * row.length < 40 ? rank : `rank ${rank}`, { font_size: 12 });
      }));
      return F.svg(width, y + 64, drawn);
    },
    say(result, state) {
      const { accuracy } = result, percent = value => Number.isFinite(value) ? `${value.toFixed(1)} %` : "nothing", lines = [];
      const repeated = range(state.images).filter(image => result.perEpoch[image][0] > 1), missing = range(state.images).filter(image => result.perEpoch[image][0] === 0);
      lines.push(repeated.length || missing.length
        ? `In epoch 0, ${repeated.length ? `${repeated.length} of ${state.images} images are read more than once` : "no image is read twice"}${missing.length ? ` and ${missing.length} not at all` : ""}.`
        : "In each epoch every image is read exactly once.");
      if (result.never.length) lines.push(`Never read in ${state.epochs} epoch${state.epochs > 1 ? "s" : ""}: ${result.never.join(", ")}.`);
      if (result.same) lines.push("Every epoch has the same order and the same shares.");
      if (result.uneven) lines.push("The ranks have different numbers of images. In training, the rank with more waits in its last all-reduce.");
      lines.push(`Evaluation over the shares of epoch 0: the model's accuracy is ${percent(accuracy.right)}; counts summed over ranks give ${percent(accuracy.summed)}, the mean of the ranks' accuracies ${percent(accuracy.mean)}.`);
      const names = new Set(result.streams.flat()), total = result.streams.flat().length;
      lines.push(names.size === total ? `All ${total} workers have random streams of their own.` : `${names.size} different random stream${names.size > 1 ? "s" : ""} in ${total} workers: equal letters draw equal numbers.`);
      return lines;
    },
    functions: { distributed: (count, ranks, drop) => distributed(range(count), ranks, drop), compute },
  });
}
