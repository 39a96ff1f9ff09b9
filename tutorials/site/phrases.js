"use strict";
/* The words of the scripts in Chinese: tutorials/zh/phrases.tsv. {} stands for a value, which is translated, too. */

const Phrases = (() => {
  const phrases = {/* phrases */};
  const VALUE = "((?:(?![.!?] ).)+?)";  // within a sentence
  const escaped = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const letters = text => text.replace(/\{\}/g, "").length;
  const patterns = Object.entries(phrases).filter(([english]) => english.includes("{}")).sort((a, b) => letters(b[0]) - letters(a[0]))
    .map(([english, chinese]) => [new RegExp(`^${english.split("{}").map(escaped).join(VALUE)}$`, "s"), chinese]);

  function find(text) {
    if (Object.hasOwn(phrases, text)) return phrases[text];
    for (const [pattern, chinese] of patterns) {
      const match = pattern.exec(text);
      if (!match) continue;
      let next = 1;
      return chinese.replace(/\{(\d?)\}/g, (_, number) => say(match[number === "" ? next++ : Number(number) + 1]));
    }
    return null;
  }

  /* A text of several sentences is translated sentence by sentence. */
  function say(text) {
    if (typeof text !== "string" || !/[A-Za-z]/.test(text)) return text;
    const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
    const found = find(words);
    if (found !== null) return before + found + after;
    const sentences = words.split(/(?<=[.!?]) (?=[A-Z0-9])/);
    return before + (sentences.length > 1 ? sentences.map(say).join("") : words) + after;
  }
  /* A query without spaces as the words of the index: the longest that fits, from the left. Sphinx's search calls it. */
  function splitQuery(query) {
    const known = { ...Search._index.terms, ...Search._index.titleterms };
    return query.split(/[^\p{Letter}\p{Number}_]+/u).flatMap(part => part.match(/[\u4e00-\u9fff]+|[^\u4e00-\u9fff]+/gu) || []).flatMap(part => {
      if (!/[\u4e00-\u9fff]/.test(part)) return [part];
      const words = [];
      for (let at = 0; at < part.length;) {
        let size = part.length - at;
        while (size > 1 && !Object.hasOwn(known, part.slice(at, at + size))) size -= 1;
        if (size > 1) words.push(part.slice(at, at + size));
        at += size;
      }
      return words.length ? words : [part];
    });
  }
  if (typeof document !== "undefined") globalThis.splitQuery = splitQuery;  // Sphinx's own has run, and its search has not
  return { say };
})();

if (typeof module !== "undefined") globalThis.Phrases = Phrases;
