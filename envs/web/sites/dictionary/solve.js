// Demonstrations for the dictionary.

const lookUp = (word) =>
  at("/word/") && said(one(".head")) === word
    ? null
    : (write(one(".finder input"), word, "Look-up field") ?? press(one('[aria-label="Look up"]')));
const go = (id) => (at(`/${id}/`) ? null : press(one(`.bar #${id}`)));
const letter = (text) =>
  new URLSearchParams(location.search).get("letter") === text.toLowerCase()
    ? null
    : press(named(".letters a", text));
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const firstSense = () => one(".senses li").firstChild.textContent.trim();
const firstUse = () => amount(said(one("#first-use")));
const save = (word, list) => {
  if (memory[word]) return null;
  const hint = lookUp(word);
  if (hint) return hint;
  if (said(one("#in-lists")).includes(list)) {
    keep({ [word]: true });
    return null;
  }
  const dialog = one(".modal");
  if (!dialog) return press(one("#save"));
  return (
    (named("label", list, dialog) ? tick(list, dialog) : write(one('[name="fresh"]', dialog), list)) ??
    press(named("button", "Save", dialog))
  );
};

const solutions = {
  "dictionary-first-use": () => lookUp(quoted[0]) ?? answer(firstUse()),
  "dictionary-translation": () =>
    lookUp(quoted[0]) ??
    tab("translations") ??
    answer(
      said(
        one(
          "td",
          all(".translations tr").find((row) => goal.includes(said(one("th", row)))),
        ),
      ),
    ),
  "dictionary-last-example": () =>
    lookUp(quoted[0]) ??
    (said(one("#more-examples")) === "More examples"
      ? press(one("#more-examples"))
      : answer(said(all("article .example").at(-1)))),
  "dictionary-save": () => save(quoted[0], "My words") ?? answer("done"),
  "dictionary-settings": () =>
    go("settings") ?? quoted.slice(0, -1).reduce((hint, text) => hint ?? tick(text), null) ?? answer("done"),
  "dictionary-word-of-day": () =>
    go("day") ?? pickDay("day", goal.match(/on (\w+ \d+, \d+)\?/)[1]) ?? answer(said(one(".day.big h2"))),
  "dictionary-count": () => {
    const [, part] = goal.match(/How many (noun|adjective)s does/) ?? [];
    return (
      go("browse") ??
      (part ? drop(one("#part"), capital(part)) : drop(one("#field"), "Science")) ??
      drop(one("#met"), quoted[0]) ??
      answer(said(one("#found")).match(/\d+/)[0])
    );
  },
  "dictionary-oldest": () => {
    const [, part, field] = goal.match(/Which (\w+) in the field (\w+) has/);
    return (
      go("browse") ??
      drop(one("#part"), capital(part)) ??
      drop(one("#field"), field) ??
      drop(one("#order"), "Oldest first") ??
      answer(said(one(".words td a")))
    );
  },
  "dictionary-longest": () => {
    const [, first] = goal.match(/the letter (\w),/);
    return (
      go("browse") ??
      letter(first) ??
      drop(one("#order"), "Longest first") ??
      answer(said(all(".words tr")[1].cells[3]))
    );
  },
  "dictionary-new-list": () => {
    const [list, ...words] = quoted;
    return save(words[0], list) ?? save(words[1], list) ?? save(words[2], list) ?? answer("done");
  },
  "dictionary-tidy": () => {
    const [, gone] = goal.match(/Remove every (\w+) from/);
    const row = () => all(".kept").find((one1) => said(one("em", one1)) === gone);
    return go("lists") ?? press(row() && named("button", "Remove", row())) ?? answer("done");
  },
  "dictionary-suggest": () => {
    const [word, text] = quoted,
      [, email] = goal.match(/email is (\S+)\./);
    if (one("#thanks")) return answer("done");
    return (
      (at("/suggest/") ? null : press(one("#suggest"))) ??
      choose(one('[name="part"]'), "Noun") ??
      write(one('[name="word"]'), word) ??
      write(one('[name="definition"]'), text) ??
      write(one('[name="email"]'), email) ??
      press(named("button", "Send suggestion"))
    );
  },
  "dictionary-quiz": () => {
    // A quiz that is left before its end is not taken: its words are read first, then looked up, then it is taken.
    const [, number] = goal.match(/quiz (\d+)/);
    const [, word] = said(one(".quiz h2")).match(/“(.+)”/) ?? [];
    if (word && !memory.words?.includes(word)) keep({ words: [...(memory.words ?? []), word] });
    for (const unknown of memory.words?.length === 5 ? memory.words : []) {
      if (memory[unknown]) continue;
      const hint = lookUp(unknown);
      if (hint) return hint;
      keep({ [unknown]: firstSense() });
    }
    if (one("#result")) return answer("done");
    if (!at("/quiz/")) return go("quiz");
    if (!word) {
      const box = all("section.panel-box").find((node) => said(one("h2", node)) === `Quiz ${number}`);
      return press(one("a", box));
    }
    const wanted = all(".choice").find((label) => said(label) === memory[word]) ?? one(".choice");
    return one("input", wanted).checked ? press(one(".quiz button.primary")) : press(wanted);
  },
  "dictionary-compare": () => {
    for (const word of quoted) {
      if (memory[word]) continue;
      const hint = lookUp(word);
      if (hint) return hint;
      keep({ [word]: firstUse() });
    }
    const years = quoted.map((word) => memory[word]);
    return answer(Math.max(...years) - Math.min(...years));
  },
};
return solutions[template]();
