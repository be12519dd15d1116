// Demonstrations for the code host.

const repoId = goal.match(/[\w-]+\/[\w-]+-[\w-]+/)?.[0];
/** From anywhere to a repository; a search by its name finds it. */
const openRepo = (id) => {
  if (["/repo/", "/issue/", "/report/"].includes(location.pathname) && asked.get("id") === id) return null;
  const card = one(`.repo-card[data-id="${id}"] h3 a`);
  return card ? press(card, id) : (write(one('.find [name="q"]'), id, "Search field") ?? key("Enter"));
};
const openTab = (tab) =>
  openRepo(repoId) ?? (one(`#tab-${tab}`).getAttribute("aria-current") ? null : press(one(`#tab-${tab}`)));
const signIn = () => {
  if (one("#me")) return null;
  if (!at("/login/")) return press(one("#sign-in"));
  const [, user, password] = goal.match(/Sign in as (\S+) with the password (\S+)\. /);
  return fillIn({ user, password }) ?? press(one("#login"));
};
const openFile = (path) => {
  if (asked.get("path") === path) return null;
  const now = asked.get("path") ?? "",
    parts = path.split("/"),
    depth = now ? now.split("/").length : 0;
  return press(named(".files td a", parts[depth]));
};
const explore = () => (at("/search/") ? null : press(one("#explore")));
const narrow = (text) => tick(text, one(".filters"));
const sortBy = (text) => drop(one("#sort"), text);
const openIssue = (number) =>
  at("/issue/") && asked.get("n") === String(number)
    ? null
    : (openTab("issues") ??
      press(one(`[data-number="${number}"] h3 a`)) ??
      press(one('[aria-label="Next page"]')));

const solutions = {
  "code-license": () =>
    openTab("code") ??
    openFile("LICENSE") ??
    answer(said(starting(".lines li", "All rights")).match(/held by (.+)\./)[1]),
  "code-setting": () => {
    const name = goal.match(/value of (\w+) in/)[1];
    return (
      openTab("code") ??
      openFile("config/default.conf") ??
      answer(said(starting(".lines li", `${name} =`)).split("= ")[1])
    );
  },
  "code-commit": () =>
    openTab("commits") ??
    answer(said(one(".author", one(`[data-hash="${goal.match(/commit (\w+) in/)[1]}"]`)))),
  "code-star": () => {
    const hint = signIn();
    if (hint) return hint;
    for (const id of goal.match(/repositories (\S+) and (\S+)\. /).slice(1)) {
      if (memory[id]) continue;
      const next = openRepo(id);
      if (next) return next;
      if (one("#star").getAttribute("aria-pressed") === "false") return press(one("#star"));
      keep({ [id]: true });
    }
    return answer("done");
  },
  "code-search": () => {
    const [, lang, topic] = goal.match(/written in (\w+) with the topic (\w+) has/);
    return (
      explore() ??
      narrow(lang) ??
      narrow(topic) ??
      sortBy("Most stars") ??
      answer(one(".repo-card").dataset.id)
    );
  },
  "code-newest": () =>
    explore() ??
    narrow(goal.match(/topic (\w+) and/)[1]) ??
    narrow(quoted[0]) ??
    sortBy("Recently updated") ??
    answer(one(".repo-card").dataset.id),
  "code-issues": () =>
    openTab("issues") ??
    drop(one("#label"), quoted[0]) ??
    (goal.includes("the closed issues") && !one("#show-closed").getAttribute("aria-current")
      ? press(one("#show-closed"))
      : null) ??
    drop(one("#order"), goal.includes("oldest") ? "Oldest" : "Newest") ??
    answer(one(".issue-row").dataset.number),
  "code-oldest": () =>
    openTab("issues") ??
    drop(one("#assignee"), goal.match(/assigned to (\S+)\? /)[1]) ??
    drop(one("#order"), "Oldest") ??
    answer(said(one(".issue-row h3 a"))),
  "code-contributor": () => {
    const lines = (card) => amount(said(one("p", card)).split(",").slice(1).join(""));
    return (
      openTab("people") ?? answer(all(".people article").sort((a, b) => lines(b) - lines(a))[0].dataset.user)
    );
  },
  "code-download": () => {
    const [, platform, version] = goal.match(/the (\w+) build of release (\S+) of/);
    return (
      openTab("releases") ??
      (one(".toast")
        ? answer("done")
        : press(
            all(`[data-version="${version}"] .assets button`).find((button) =>
              said(button).includes(`-${platform}.`),
            ),
          ))
    );
  },
  "code-find": () => {
    const name = goal.match(/function (\w+)\? /)[1];
    return (
      openTab("code") ??
      (asked.get("find") === name
        ? answer(said(one(".hit a")))
        : (write(one('[name="find"]'), name) ?? key("Enter")))
    );
  },
  "code-comment": () => {
    const number = goal.match(/issue #(\d+)/)[1],
      hint = signIn() ?? openIssue(number);
    if (hint) return hint;
    return all(".remark p").some((node) => said(node) === quoted[0])
      ? answer("done")
      : memory.typed
        ? press(one("#comment"))
        : (keep({ typed: true }), write(one('[name="comment"]'), quoted[0]));
  },
  "code-report": () => {
    const [title, body, severity, ...labels] = quoted,
      hint = signIn();
    if (hint) return hint;
    if (at("/issue/")) return answer("done");
    if (!at("/report/")) return openTab("issues") ?? press(one("#new-issue"));
    return (
      write(one('[name="title"]'), title) ??
      write(one('[name="body"]'), body) ??
      choose(one('[name="severity"]'), severity) ??
      tick(labels[0]) ??
      tick(labels[1]) ??
      press(one("#submit"))
    );
  },
  "code-triage": () => {
    const hint = signIn();
    if (hint) return hint;
    if (at("/issue/") && one("#toggle-issue"))
      return press(said(one(".state")) === "Open" ? one("#toggle-issue") : one("#tab-issues"));
    return (
      openTab("issues") ?? drop(one("#label"), quoted[0]) ?? press(one(".issue-row h3 a")) ?? answer("done")
    );
  },
  "code-create": () => {
    const [name, about, lang, license, ...topics] = quoted,
      hint = signIn();
    if (hint) return hint;
    if (one(".made")) return answer("done");
    if (!at("/new/")) return press(one("#new"));
    // Enter in the name alone would create it: the name comes last.
    return (
      write(one('[name="about"]'), about) ??
      tick("Private") ??
      choose(one('[name="language"]'), lang) ??
      choose(one('[name="license"]'), license) ??
      tick("Add a README file") ??
      tick(topics[0]) ??
      tick(topics[1]) ??
      write(one('[name="name"]'), name) ??
      press(one("#create"))
    );
  },
  "code-edit": () => {
    const [, name, value] = goal.match(/change (\w+) in the file config\/default\.conf to (\d+)/),
      hint = signIn() ?? openTab("code") ?? openFile("config/default.conf");
    if (hint) return hint;
    const area = one('[name="text"]');
    if (!area)
      return all(".lines li").some((line) => said(line) === `${name} = ${value}`)
        ? answer("done")
        : press(one("#edit"));
    const wanted = area.value
      .split("\n")
      .map((line) => (line.startsWith(`${name} =`) ? `${name} = ${value}` : line))
      .join("\n")
      .trim();
    return write(area, wanted) ?? write(one('[name="message"]'), quoted[0]) ?? press(one("#commit"));
  },
};
return solutions[template]();
