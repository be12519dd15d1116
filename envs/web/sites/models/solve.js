// Demonstrations for the model hub.

const ids = goal.match(/[a-z-]+\/[\w-]+/g) ?? [];
/** From anywhere to a model or a data set. */
const openItem = (id, sets = false) => {
  if (["/model/", "/dataset/"].includes(location.pathname) && asked.get("id") === id) return null;
  const path = sets ? "/datasets/" : "/models/";
  if (!at(path)) return press(one(sets ? "#datasets" : "#models"));
  const link = one(`.card[data-id="${id}"] h3 a`);
  return link && asked.get("q") === id
    ? press(link, id)
    : (write(one('.find [name="q"]'), id, "Search field") ?? key("Enter"));
};
const openTab = (tab) => (one(`#tab-${tab}`).getAttribute("aria-current") ? null : press(one(`#tab-${tab}`)));
const browse = (what) => (at(`/${what}/`) ? null : press(one(`#${what}`)));
const filter = (text) => tick(text, one(".filters"));
const sortBy = (text) => drop(one("#sort"), text);
const hearts = () => all(".card .figures span").filter((node) => said(node).startsWith("♥"));
const firstId = () => one(".card").dataset.id;
/** Scrolls until the last of a list is in sight. */
const seeAll = (list) => {
  const { scroll: direction } = reach(list.at(-1));
  return direction ? scroll(direction) : null;
};
const dialog = one(".modal");
/** The number of the row whose score comes first in an order. */
const firstRow = (order) => {
  const rows = all(".rows tr").slice(1),
    score = (row) => amount(said(row.cells[4]));
  return seeAll(rows) ?? answer(said(rows.sort((a, b) => order(score(a), score(b)))[0].cells[0]));
};
const narrowRows = (label, split) =>
  openTab("viewer") ?? drop(one("#label"), label) ?? drop(one("#split"), split);

const solutions = {
  "models-score": () =>
    openItem(ids[0]) ??
    answer(said(all(".scores tr").find((row) => said(row.cells[0]) === quoted[0]).cells[1])),
  "models-rows": () => openItem(ids[0], true) ?? answer(amount(fact("Rows"))),
  "models-like": () => {
    for (const [at, id] of ids.entries()) {
      if (memory[id]) continue;
      const hint = openItem(id, at === 1);
      if (hint) return hint;
      if (!one("#like.on")) return press(one("#like"));
      keep({ [id]: true });
    }
    return answer("done");
  },
  "models-layers": () => {
    const name = goal.match(/value of (\w+) in/)[1],
      hint = openItem(ids[0]) ?? openTab("files");
    return (
      hint ??
      (one(".look")
        ? answer(said(one(".look pre")).match(new RegExp(`"${name}": (\\d+)`))[1])
        : press(one(".open", one('[data-file="config.json"]'))))
    );
  },
  "models-most": () => {
    const [, language, what] = goal.match(/knows (\w+) has the most (\w+)\?/);
    return (
      browse("models") ?? filter(quoted[0]) ?? filter(language) ?? sortBy(`Most ${what}`) ?? answer(firstId())
    );
  },
  "models-count": () =>
    browse("models") ??
    filter(quoted[0]) ??
    filter(quoted[1]) ??
    filter(`Up${goal.match(/and up( to \w+) parameters/)[1]}`) ??
    seeAll(hearts()) ??
    answer(hearts().reduce((sum, one) => sum + amount(said(one)), 0)),
  "models-smallest": () =>
    browse("datasets") ??
    filter(quoted[0]) ??
    filter(goal.match(/language (\w+) has/)[1]) ??
    sortBy("Smallest first") ??
    answer(firstId()),
  "models-download": () => {
    const [, file] = goal.match(/the file (\S+) of/),
      hint = openItem(ids[0], goal.includes("of the data set")) ?? openTab("files");
    return hint ?? (one(".toast") ? answer("done") : press(one(".get", one(`[data-file="${file}"]`))));
  },
  "models-collect": () => {
    for (const id of ids) {
      if (memory[id]) continue;
      const hint = openItem(id) ?? (dialog ? null : press(one("#collect")));
      if (hint) return hint;
      const next = named("label", quoted[0], dialog)
        ? tick(quoted[0], dialog)
        : write(one('[name="collection"]'), quoted[0]);
      if (next) return next;
      keep({ [id]: true });
      return press(named("footer button", "Done", dialog));
    }
    return answer("done");
  },
  "models-reply": () => {
    const number = goal.match(/#(\d+)/)[1];
    if (!at("/discussion/"))
      return openItem(ids[0]) ?? openTab("discussions") ?? press(one("a", one(`[data-number="${number}"]`)));
    if (all(".post p").some((node) => said(node) === quoted[0])) return answer("done");
    return one('[name="reply"]').value.trim() === quoted[0]
      ? press(one("#send"))
      : write(one('[name="reply"]'), quoted[0]);
  },
  "models-viewer": () => {
    const least = goal.match(/at least (\d+)/)[1];
    return (
      openItem(ids[0], true) ??
      narrowRows(quoted[0], quoted[1]) ??
      (asked.get("least") === least ? null : write(one('[name="least"]'), least)) ??
      firstRow((a, b) => a - b)
    );
  },
  "models-board": () => {
    const head = () => all(".sortable th button").find((button) => said(button).startsWith(quoted[1]));
    return (
      browse("board") ??
      drop(one("#task"), quoted[0]) ??
      drop(one("#max"), `Up${goal.match(/with up( to \w+) parameters/)[1]}`) ??
      (head().closest("th").getAttribute("aria-sort") === "descending" ? null : press(head())) ??
      answer(said(one(".sortable tbody td")))
    );
  },
  "models-access": () => {
    const hint = openItem(ids[0]) ?? openTab("files");
    if (hint) return hint;
    if (one(".toast")) return answer("done");
    if (!one("#ask-access")) return press(one(".get", one('[data-file="config.json"]')));
    if (!dialog) return press(one("#ask-access"));
    return (
      fillIn({ name: goal.match(/ as (.+) of the "/)[1], affiliation: quoted[0] }, dialog) ??
      choose(one('[name="purpose"]'), quoted[1]) ??
      tick("I accept the licence", dialog, false) ??
      press(named("footer button", "Send", dialog))
    );
  },
  "models-discuss": () => {
    if (at("/discussion/")) return answer("done");
    const hint = openItem(ids[0]) ?? openTab("discussions");
    if (hint) return hint;
    return dialog
      ? (write(one('[name="title"]'), quoted[0]) ??
          write(one('[name="text"]'), quoted[1]) ??
          choose(one('[name="kind"]'), quoted[2]) ??
          press(named("footer button", "Post", dialog)))
      : press(one("#new-discussion"));
  },
  "models-origin": () => {
    if (!at("/dataset/")) return openItem(ids[0]) ?? press(one("#trained"));
    return narrowRows(quoted[1], quoted[0]) ?? firstRow((a, b) => b - a);
  },
};
return solutions[template]();
