// Demonstrations for the search engine.

/** Searches from anywhere; leaves the kind of results as it is. */
const seek = (q) =>
  at("/search/") && asked.get("q") === q
    ? null
    : one('[name="q"]')
      ? (write(one('[name="q"]'), q, "Search field") ?? press(one("#seek")))
      : press(one(".logo"));
const only = (type) =>
  one(`#type-${type}`).getAttribute("aria-current") ? null : press(one(`#type-${type}`));
const result = (title) => all(".result").find((node) => said(one("h3", node)) === title);
const number = () => answer(said(one("#found")).match(/[\d,]+/)[0]);
const open = (id) => (at(`/${id}/`) ? null : press(one(`#${id}`)));
const figure = (term, root = document) =>
  [...root.querySelectorAll(".figures tr")].find((row) => row.cells[0].textContent === term)?.cells[1]
    .textContent;
/** What the page says, read in the frame of its preview. */
const preview = (title) => {
  const frame = document.querySelector(".frame"),
    page = frame?.contentDocument;
  if (page?.querySelector("h1")?.textContent === title) return { page };
  if (frame) return { hint: { action: "wait", seconds: 1 } };
  return { hint: seek(title) ?? press(one(".preview", result(title))) };
};

const solutions = {
  "search-panel": () => seek(goal.match(/Search for (.+?)\. What/)[1]) ?? answer(amount(fact(quoted[0]))),
  "search-count": () => seek(quoted[0]) ?? number(),
  "search-settings": () => {
    const size = goal.match(/(\d+) results a page/)?.[1],
      wanted = [size, ...quoted.slice(0, -1)].filter(Boolean);
    return (
      open("settings") ??
      wanted.reduce((hint, text) => hint ?? tick(text), null) ??
      (one(".toast") ? answer("done") : press(one("#save")))
    );
  },
  "search-vote": () =>
    seek(goal.match(/Search for (.+?) and say/)[1]) ??
    press(named(".vote button", goal.match(/that it is (\w+)\./)[1])) ??
    answer("done"),
  "search-figure": () =>
    at("/page/")
      ? answer(amount(figure(quoted[1])))
      : (seek(quoted[0]) ?? press(one("a.tab", result(quoted[0])))),
  "search-author": () =>
    at("/page/") ? answer(said(one("#author"))) : (seek(quoted[0]) ?? press(one("h3 a", result(quoted[0])))),
  "search-newest": () =>
    seek(goal.match(/search for (.+) finds/)[1]) ??
    drop(one("#sort"), "Newest") ??
    answer(said(one(".result h3"))),
  "search-recent": () => {
    const [, span] = goal.match(/pages of the (past [\w ]+) does/);
    return seek(quoted[0]) ?? drop(one("#days"), span.replace("past", "Past")) ?? number();
  },
  "search-ask": () => {
    const hint = seek(goal.match(/search for (.+?) shows/)[1]);
    if (hint) return hint;
    const part = all(".ask details").find((node) => said(one("summary", node)) === quoted[0]);
    return part.open ? answer(said(one("p", part)).match(/\d+/)[0]) : press(one("summary", part));
  },
  "search-save": () => {
    for (const title of quoted.slice(0, 2)) {
      if (memory[title]) continue;
      const hint = seek(title);
      if (hint) return hint;
      const button = one(".keep", result(title));
      if (!button.classList.contains("on")) return press(button);
      keep({ [title]: true });
    }
    return answer("done");
  },
  "search-image": () => {
    const [, place, colour] = goal.match(/search for (.+) finds, which is the largest of the colour (\w+)\?/);
    return (
      seek(place) ??
      only("images") ??
      drop(one("#colour"), colour) ??
      drop(one("#sort"), "Largest") ??
      answer(said(one(".picture small")).match(/\d+/)[0])
    );
  },
  "search-operators": () => {
    const type = goal.includes("under News") ? "news" : goal.includes("under Forums") ? "forum" : "all";
    return (
      seek(`"${quoted[0]}" ${quoted[1]} -${quoted[2]}`) ??
      only(type) ??
      drop(one("#sort"), "Newest") ??
      answer(said(one(".result h3")))
    );
  },
  "search-compare": () => {
    const [term, a, b] = quoted;
    for (const title of [a, b]) {
      if (memory[title]) continue;
      const { hint, page } = preview(title);
      if (hint) return hint;
      keep({ [title]: amount(figure(term, page)) });
      return press(one('.modal [aria-label="Close"]'));
    }
    return answer(memory[a] - memory[b]);
  },
  "search-founder": () => {
    if (!memory.name) {
      const hint = seek(goal.match(/began the (.+?); the panel/)[1]);
      if (hint) return hint;
      keep({ name: fact("Begun by") });
    }
    return seek(`"${memory.name}"`) ?? drop(one("#sort"), "Newest") ?? answer(said(one(".result h3")));
  },
};
return solutions[template]();
