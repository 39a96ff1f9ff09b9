"use strict";
/* What the pages of the course remember in the reader's browser (localStorage): guesses and chapters read. Nothing is sent
   anywhere. And a few attributes that the theme leaves out, for screen readers. */

const Course = (() => {
  const fill = (words, title) => say(words).replace("{}", () => title);  // a title has full stops, and is no phrase
  const say = words => typeof Phrases === "undefined" ? words : Phrases.say(words);  // in the language of the page
  const key = (kind, name) => `course ${kind} ${name}`;
  function load(kind, name) { try { return localStorage.getItem(key(kind, name)); } catch { return null; } }
  function save(kind, name, value) {
    try { value === "" ? localStorage.removeItem(key(kind, name)) : localStorage.setItem(key(kind, name), value); } catch { /* not allowed to remember */ }
  }

  function parse(text) {
    const clean = String(text === null ? "" : text).trim().replace(",", ".").replace(/%$/, "");
    return clean === "" || !Number.isFinite(Number(clean)) ? null : Number(clean);
  }
  const short = value => value !== 0 && (Math.abs(value) < 0.01 || Math.abs(value) >= 1e6) ? value.toExponential(1) : String(+value.toPrecision(3));

  /* [class, words]: how far a guess is from the measured value. */
  function judge(guess, measured) {
    if (Math.abs(guess - measured) <= Math.abs(measured) * 0.1) return ["close", "within 10 %"];
    if (Math.abs(guess - measured) <= 1e-6) return ["close", "less than a millionth off"];
    const factor = guess / measured;
    if (!(factor > 0) || !Number.isFinite(factor)) return ["far", `${short(Math.abs(guess - measured))} too ${guess > measured ? "large" : "small"}`];
    const times = factor > 1 ? factor : 1 / factor;
    return [times <= 2 ? "near" : "far", `${short(times)} times too ${factor > 1 ? "large" : "small"}`];
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = say(text);
    return made;
  }

  // --- On a chapter's page -----------------------------------------------------------------------------------------

  function guessBox(box) {
    const input = box.querySelector("input"), said = box.querySelector("output"), name = box.dataset.guess;
    const show = () => {
      const value = parse(input.value);
      said.textContent = say(input.value.trim() === "" ? "" : value === null ? "Not a number." : "Remembered. The chapter comes back to it.");
      document.querySelectorAll(".guess-answer").forEach(answer => { if (answer.dataset.guess === name) showAnswer(answer, value); });
    };
    input.value = load("guess", name) || "";
    input.addEventListener("input", () => { save("guess", name, parse(input.value) === null ? "" : input.value.trim()); show(); });
    show();
  }
  function showAnswer(answer, guess) {
    answer.querySelectorAll(".guess-yours").forEach(old => old.remove());
    if (guess === null) return;
    const [grade, words] = judge(guess, Number(answer.dataset.measured));
    answer.append(element("span", `guess-yours guess-${grade}`, `Your guess: ${short(guess)}, ${words}.`));
  }

  function readBox(input) {
    input.checked = load("read", input.dataset.read) !== null;
    input.addEventListener("change", () => save("read", input.dataset.read, input.checked ? "yes" : ""));
  }

  // --- On the start page -------------------------------------------------------------------------------------------

  function progress(box) {
    const chapters = JSON.parse(document.getElementById("course-chapters").textContent);
    const read = chapters.filter(chapter => load("read", chapter.name) !== null);
    const next = chapters.find(chapter => load("read", chapter.name) === null);
    box.querySelector("progress").max = chapters.length;
    box.querySelector("progress").value = read.length;
    const words = box.querySelector(".progress-words");
    words.textContent = say(`${read.length} of ${chapters.length} chapters read. `);
    if (next) {
      const link = element("a", "");
      link.textContent = fill(read.length ? "Next: {}" : "Begin with: {}", next.title);
      link.href = next.page;
      words.append(link);
    }
    document.querySelectorAll(".bd-article td a.reference").forEach(link => {
      if (read.some(chapter => link.getAttribute("href") === chapter.page)) link.after(element("span", "chapter-read", " ✓ read"));
    });

    const guesses = chapters.flatMap(chapter => chapter.guesses.map(guess => ({ ...guess, chapter, yours: parse(load("guess", guess.name)) })));
    const made = guesses.filter(guess => guess.yours !== null);
    const card = box.querySelector(".score-card");
    const counts = { close: 0, near: 0, far: 0 }, table = element("table"), head = element("tr");
    ["Chapter", "Question", "Your guess", "Measured", ""].forEach(words => {
      const cell = element(words ? "th" : "td", "", words);
      if (words) cell.scope = "col";
      head.append(cell);
    });
    table.append(element("thead"), element("tbody"));
    table.tHead.append(head);
    for (const guess of made.filter(guess => guess.measured !== null)) {
      const [grade, words] = judge(guess.yours, guess.measured), row = element("tr");
      counts[grade] += 1;
      const place = element("td"), link = element("a", "", guess.chapter.title);
      link.href = guess.chapter.page;
      place.append(link);
      row.append(place, ...[guess.question, short(guess.yours), short(guess.measured), words].map(text => element("td", "", text)));
      table.tBodies[0].append(row);
    }
    card.replaceChildren(element("p", "", made.length
      ? `${made.length} of ${guesses.length} guesses made: ${counts.close} within 10 %, ${counts.near} within a factor of 2, ${counts.far} further off.`
      : `No guess yet, of ${guesses.length}. Each chapter asks for one or two before it measures.`));
    if (table.tBodies[0].rows.length) {
      const details = element("details");
      details.append(element("summary", "", "Score card"), table);
      card.append(details);
    }
    const clear = box.querySelector("button");
    clear.hidden = !made.length && !read.length;
    clear.onclick = () => {
      chapters.forEach(chapter => save("read", chapter.name, ""));
      guesses.forEach(guess => save("guess", guess.name, ""));
      document.querySelectorAll(".chapter-read").forEach(mark => mark.remove());
      progress(box);
    };
  }

  /* What axe finds in the theme's own HTML, and tables whose first column has no heading. */
  function label() {
    document.querySelectorAll(".search-button__button[aria-label], .bd-article summary[aria-label]").forEach(named => { if (named.textContent.trim()) named.removeAttribute("aria-label"); });
    document.querySelectorAll(".bd-sidebar-primary summary").forEach(summary => {
      const link = summary.parentElement.previousElementSibling || summary.closest("li").querySelector("a");
      summary.setAttribute("aria-label", fill("Pages below {}", link ? link.textContent.trim() : say("this page")));
    });
    document.querySelectorAll(".sidebar-primary-items__start").forEach(side => { side.setAttribute("role", "navigation"); side.setAttribute("aria-label", say("Course")); });
    document.querySelectorAll(".bd-article th").forEach(head => {
      if (head.textContent.trim() || head.querySelector("img")) return;
      const cell = element("td", head.className);
      head.replaceWith(cell);
    });
    document.querySelectorAll(".bd-article pre, .bd-article table, .cell_output .output, .cell_output .highlight").forEach(box => {
      if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;  // scrolled with the keyboard
    });
  }

  function start() {
    document.querySelectorAll(".guess-answer").forEach(answer => showAnswer(answer, parse(load("guess", answer.dataset.guess))));
    document.querySelectorAll(".guess-box").forEach(guessBox);
    document.querySelectorAll("[data-read]").forEach(readBox);
    document.querySelectorAll(".course-progress").forEach(progress);
    label();
  }
  if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", start);
  return { judge, parse };
})();

if (typeof module !== "undefined") module.exports = Course;
