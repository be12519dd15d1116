// Demonstrations for the archive.

const months = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
/** A field of the quick search is set, then the words are typed, which starts the search. */
const quick = (text, inField = "All fields") => {
  const asked = new URLSearchParams(location.search);
  if (
    at("/search/") &&
    asked.get("q") === text &&
    one('select[name="field"]').selectedOptions[0].text === inField
  )
    return null;
  return (
    choose(one('.quick select[name="field"]'), inField) ??
    write(one('.quick input[name="q"]'), text, "Search field") ??
    press(one("#search"))
  );
};
const openPaper = (title) => {
  if (at("/abs/") && said(one(".paper h1")) === title) return null;
  const link = all(".entry h3 a").find((node) => said(node) === title);
  return link ? press(link) : (quick(title, "Title") ?? press(one('[aria-label="Next page"]')));
};
const openAuthor = (name) => {
  if (at("/author/") && said(one("h1")) === name) return null;
  const link = all(".entry .authors a").find((node) => said(node) === name);
  return link ? press(link) : quick(name, "Author");
};
const meta = (name) =>
  said(
    one(
      "td",
      all(".meta tr").find((row) => said(one("th", row)) === name),
    ),
  );
const pages = () => meta("Comments").match(/^(\d+) pages/)[1];
const order = (text) => drop(one("#order"), text);
const iso = (day) => {
  const [, date, month, year] = day.match(/(\d+) (\w+) (\d+)/);
  return `${year}-${String(months.indexOf(month) + 1).padStart(2, "0")}-${date.padStart(2, "0")}`;
};
const comments = () => all(".entry p:last-child");
const first = () => one(".entry h3 a");
/** Scrolls until the last of a list is in sight. */
const seeAll = (list) => {
  const { scroll: direction } = reach(list.at(-1));
  return direction ? scroll(direction) : null;
};
const bookmark = (title) => {
  if (memory[title]) return null;
  const hint = openPaper(title);
  if (hint) return hint;
  if (!said(one("#bookmark")).startsWith("On")) return press(one("#bookmark"));
  keep({ [title]: true });
  return null;
};

const solutions = {
  "papers-pages": () => openPaper(quoted[0]) ?? answer(pages()),
  "papers-last-author": () => openPaper(quoted[0]) ?? answer(said(all(".paper .authors a").at(-1))),
  "papers-first-version": () => openPaper(quoted[0]) ?? answer(amount(said(all(".history tr")[1].cells[2]))),
  "papers-bookmark": () => bookmark(quoted[0]) ?? bookmark(quoted[1]) ?? answer("done"),
  "papers-bibtex": () =>
    openPaper(quoted[0]) ??
    (one(".modal") ? answer(said(one("#bibtex-text")).match(/\{(\w+),/)[1]) : press(one("#bibtex"))),

  "papers-by-author": () => {
    const [, author, field] = goal.match(/papers of (.+) in the subject (.+) on Quarto/);
    return (
      openAuthor(author) ??
      drop(one("#subject"), field) ??
      seeAll(comments()) ??
      answer(comments().reduce((sum, one) => sum + amount(said(one).match(/· (\d+) pages,/)[1]), 0))
    );
  },

  "papers-newest": () => quick(quoted[0], "Title") ?? order("Newest first") ?? answer(said(first())),

  "papers-between": () => {
    const [, field, from, to] = goal.match(
      /papers in (.+) that were submitted from (\w+ \d+, \d+) to (\w+ \d+, \d+),/,
    );
    if (at("/search/")) return order("Most cited") ?? answer(said(first()));
    if (!at("/advanced/")) return press(one("#advanced"));
    return tick(field, one(".ticks")) ?? pickDay("from", from) ?? pickDay("to", to) ?? press(one("#run"));
  },

  "papers-most-cited": () => {
    if (at("/abs/")) return answer(pages());
    return quick(quoted[0], "Title") ?? order("Most cited") ?? press(first());
  },

  "papers-alert": () => {
    const [, often, email] = goal.match(/alert: (\w+), to (\S+), for the subjects .+ and .+, without/);
    // "and" may be part of a subject's name: the boxes on the page say where one ends.
    if (!at("/alerts/")) return press(one("#alerts"));
    if (one(".kept")) return answer("done");
    const names = all(".ticks label")
      .map(said)
      .filter((name) => goal.includes(`subjects ${name} and `) || goal.includes(` and ${name}, without`));
    return (
      tick(names[0]) ??
      tick(names[1]) ??
      tick(often.charAt(0).toUpperCase() + often.slice(1)) ??
      write(one("#field-email"), email) ??
      press(one("#create-alert"))
    );
  },

  "papers-table": () => {
    const [, method, data] = goal.match(/value for "([^"]+)" on (.+)\? Answer/);
    if (!at("/pdf/")) return openPaper(quoted[0]) ?? press(one("#pdf"));
    const table = document.querySelector("iframe").contentDocument?.querySelector(".sheet table");
    if (!table) return null;
    // The table has to be in sight before it can be read.
    const box = table.getBoundingClientRect(),
      frame = document.querySelector("iframe").getBoundingClientRect();
    if (box.bottom > frame.height) return scroll("down");
    const column = [...table.querySelectorAll("th")].findIndex((cell) => said(cell) === data);
    return answer(
      said([...table.querySelectorAll("tr")].find((row) => said(row.cells[0]) === method).cells[column]),
    );
  },

  "papers-tidy": () => {
    if (!at("/library/")) return press(one("#library"));
    const day = iso(goal.match(/before (\d+ \w+ \d+),/)[1]);
    const rows = all("article.kept");
    const old = rows.find((row) => iso(said(row).match(/submitted (\d+ \w+ \d+)/)[1]) < day);
    if (old) return press(one(".remove", old));
    const unread = rows.find((row) => !row.classList.contains("read"));
    return unread ? press(one("label", unread)) : answer("done");
  },

  "papers-note": () => {
    const [, author] = goal.match(/paper by (.+) on the reading list/),
      [folder, note] = quoted;
    if (at("/library/")) {
      const dialog = one(".modal");
      if (!dialog) return one(".note") ? answer("done") : press(named("button", "Edit"));
      return (
        write(one('[name="folder"]', dialog), folder) ??
        write(one('[name="note"]', dialog), note) ??
        press(named("button", "Save", dialog))
      );
    }
    if (at("/abs/") && memory.found)
      return said(one("#bookmark")).startsWith("On") ? press(one("#library")) : press(one("#bookmark"));
    const hint = openAuthor(author) ?? order("Most cited");
    if (hint) return hint;
    keep({ found: true });
    return press(first());
  },

  "papers-report": () => {
    const [, id] = goal.match(/identifier (\S+)\./),
      [kind, text] = quoted,
      [, email] = goal.match(/Email: (\S+)\./);
    const dialog = one(".modal");
    if (dialog)
      return (
        choose(one('[name="kind"]', dialog), kind) ??
        write(one('[name="text"]', dialog), text) ??
        write(one('[name="email"]', dialog), email) ??
        press(named("button", "Send report", dialog))
      );
    if (one(".toast")) return answer("done");
    if (at("/abs/")) return press(one("#report"));
    return quick(id, "Identifier") ?? press(first());
  },

  "papers-best-reference": () => {
    const links = memory.links;
    if (!links) {
      const hint =
        openPaper(quoted[0]) ?? press(starting('[role="tab"][aria-selected="false"]', "References"));
      if (hint) return hint;
      keep({ links: all(".references a").map(said), counts: [] });
      return press(one(".references a"));
    }
    // One reference after the other: read its line of citations, go back, open the next.
    if (at("/abs/") && said(one(".paper h1")) !== quoted[0]) {
      if (memory.counts.length === links.indexOf(said(one(".paper h1"))))
        keep({ counts: [...memory.counts, amount(meta("Cited"))] });
      if (memory.counts.length === links.length)
        return answer(links[memory.counts.indexOf(Math.max(...memory.counts))]);
      return { action: "go_back" };
    }
    return (
      press(starting('[role="tab"][aria-selected="false"]', "References")) ??
      press(all(".references a")[memory.counts.length])
    );
  },
};
return solutions[template]();
