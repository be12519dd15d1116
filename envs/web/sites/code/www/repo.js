// A repository: its head and its tabs; the one of the files is in files.js.

import { visit } from "/kit/address.js";
import { add, count, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, query, state } from "/kit/site.js";
import { chooser, download, field, leaf, modal, pagination, toast, validate } from "/kit/ui.js";
import { BRANCHES, forkRules, issuesNow } from "/transitions.js";
import { LABELS, commitsOf, contributorsOf, releasesOf } from "/world.js";
import { avatar, label, signedIn, toggle } from "/parts.js";
import { codeTab } from "/files.js";

const TABS = [
  ["code", "Code"],
  ["issues", "Issues"],
  ["commits", "Commits"],
  ["releases", "Releases"],
  ["people", "Contributors"],
];

/** The top of every page of a repository. */
export function repoHead(repo, open) {
  const openIssues = issuesNow(state(), repo).filter((issue) => issue.open).length;
  const fork = h(
    "button",
    {
      id: "fork",
      onclick: () => {
        if (signedIn()) forkDialog(repo);
      },
    },
    icon("fork", 16),
    "Fork",
  );
  return h(
    "div",
    { class: "repo-head" },
    h(
      "div",
      { class: "row" },
      icon("book", 22),
      h(
        "h1",
        {},
        h("a", { href: href("/user/", { name: repo.owner }) }, repo.owner),
        " / ",
        h("a", { href: href("/repo/", { id: repo.id }) }, repo.name),
      ),
      h(
        "div",
        { class: "end row" },
        toggle(repo, "watching", "bookmark", ["Watch", "Watching"], "watch"),
        fork,
        toggle(
          repo,
          "stars",
          "star",
          [`Star ${grouped(repo.stars)}`, `Starred ${grouped(repo.stars + 1)}`],
          "star",
        ),
      ),
    ),
    h(
      "nav",
      { class: "repo-tabs" },
      TABS.map(([id, title]) =>
        h(
          "a",
          {
            href: href("/repo/", { id: repo.id, tab: id === "code" ? "" : id }),
            id: `tab-${id}`,
            "aria-current": id === open ? "page" : null,
          },
          title,
          id === "issues" ? h("i", {}, String(openIssues)) : null,
        ),
      ),
    ),
  );
}

function forkDialog(repo) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h("p", { class: "soft" }, `A copy of ${repo.id} under your name.`),
    field({ label: "Name of the fork", name: "name", value: repo.name }),
    field({ label: "Branches", name: "branches", options: BRANCHES }),
  );
  modal({
    title: "Fork this repository",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Create fork",
        primary: true,
        act: () => {
          const values = validate(form, forkRules);
          if (!values) return false;
          apply("forks.add", { id: repo.id, name: values.name, branches: values.branches });
          toast(`Forked to ${state().user}/${values.name}`);
        },
      },
    ],
  });
}

export function repoPage(world, main) {
  const asked = query(),
    repo = world.byId.get(asked.id);
  if (!repo) {
    add(main, h("h1", {}, "There is no such repository"), h("a", { href: "/search/" }, "Explore"));
    return "Not found";
  }
  const open = TABS.some(([id]) => id === asked.tab) ? asked.tab : "code";
  add(
    main,
    repoHead(repo, open),
    { code: codeTab, issues: issuesTab, commits: commitsTab, releases: releasesTab, people: peopleTab }[open](
      repo,
      asked,
      world,
    ),
  );
  return repo.id;
}

// ---- issues, commits, releases, people ----

function issuesTab(repo, asked) {
  const all = issuesNow(state(), repo),
    shut = asked.shown === "closed",
    text = tidy(asked.text ?? "").toLowerCase();
  const fits = (issue) =>
    (!asked.label || issue.labels.includes(asked.label)) &&
    (!asked.author || issue.author === asked.author) &&
    (!asked.assignee || issue.assignee === asked.assignee) &&
    issue.title.toLowerCase().includes(text);
  const found = all.filter(fits),
    counts = {
      open: found.filter(({ open }) => open).length,
      closed: found.filter(({ open }) => !open).length,
    };
  const orders = {
    newest: (a, b) => b.number - a.number,
    oldest: (a, b) => a.number - b.number,
    comments: (a, b) => b.comments.length - a.comments.length || b.number - a.number,
  };
  const list = found.filter(({ open }) => open !== shut).sort(orders[asked.order] ?? orders.newest),
    { shown, page, pages } = leaf(list, asked.page, 15);
  const go = (changes) => visit(href("/repo/", { ...asked, page: "", ...changes }));
  const names = (key) => [
    ["", "Anyone"],
    ...[...new Set(all.map((issue) => issue[key]).filter(Boolean))].sort().map((one) => [one, one]),
  ];
  const input = h("input", {
    type: "text",
    name: "text",
    value: asked.text ?? "",
    placeholder: "Title contains",
    "aria-label": "Title contains",
  });
  return h(
    "div",
    { class: "issues" },
    h(
      "div",
      { class: "row" },
      h(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            go({ text: tidy(input.value) });
          },
        },
        input,
      ),
      chooser(
        "Label",
        "label",
        asked.label ?? "",
        [["", "All"], ...LABELS.map(({ name }) => [name, name])],
        (value) => go({ label: value }),
      ),
      chooser("Author", "author", asked.author ?? "", names("author"), (author) => go({ author })),
      chooser("Assignee", "assignee", asked.assignee ?? "", names("assignee"), (assignee) =>
        go({ assignee }),
      ),
      chooser(
        "Sort",
        "order",
        asked.order ?? "newest",
        [
          ["newest", "Newest"],
          ["oldest", "Oldest"],
          ["comments", "Most commented"],
        ],
        (order) => go({ order }),
      ),
      h(
        "a",
        { class: "button primary end", id: "new-issue", href: href("/report/", { id: repo.id }) },
        "New issue",
      ),
    ),
    h(
      "div",
      { class: "issue-list" },
      h(
        "header",
        {},
        h(
          "a",
          {
            id: "show-open",
            "aria-current": shut ? null : "page",
            href: href("/repo/", { ...asked, page: "", shown: "" }),
          },
          `${counts.open} Open`,
        ),
        h(
          "a",
          {
            id: "show-closed",
            "aria-current": shut ? "page" : null,
            href: href("/repo/", { ...asked, page: "", shown: "closed" }),
          },
          `${counts.closed} Closed`,
        ),
      ),
      shown.map((issue) =>
        h(
          "article",
          { class: "issue-row", "data-number": issue.number },
          h("i", { class: issue.open ? "open" : "closed" }, issue.open ? "◉" : "✓"),
          h(
            "div",
            {},
            h(
              "h3",
              {},
              h("a", { href: href("/issue/", { id: repo.id, n: issue.number }) }, issue.title),
              issue.labels.map(label),
            ),
            h(
              "small",
              { class: "soft" },
              `#${issue.number} opened on ${dates.short(issue.day)} by ${issue.author}${issue.assignee ? `, assigned to ${issue.assignee}` : ""}`,
            ),
          ),
          issue.comments.length ? h("span", { class: "end soft" }, `✉ ${issue.comments.length}`) : null,
        ),
      ),
      list.length ? null : h("p", { class: "empty" }, "No issue fits."),
    ),
    pagination({ page, pages, address: (to) => href("/repo/", { ...asked, page: to }) }),
  );
}

function commitsTab(repo, asked) {
  const own = state()
      .commits.filter(({ id }) => id === repo.id)
      .reverse(),
    all = commitsOf(repo);
  const found = all.filter(({ author }) => !asked.author || author === asked.author),
    { shown, page, pages } = leaf(found, asked.page, 20);
  const row = (commit) =>
    h(
      "tr",
      { "data-hash": commit.hash },
      h(
        "td",
        {},
        h("b", {}, commit.message),
        h(
          "p",
          { class: "soft" },
          h("span", { class: "author" }, commit.author),
          ` · ${dates.long(commit.day)} · `,
          h("span", {}, commit.path),
        ),
      ),
      h(
        "td",
        { class: "number" },
        h("span", { class: "plus" }, `+${commit.added}`),
        " ",
        h("span", { class: "less" }, `−${commit.removed}`),
      ),
      h("td", { class: "number" }, h("code", {}, commit.hash)),
    );
  return h(
    "div",
    {},
    h(
      "div",
      { class: "row" },
      h("h2", { id: "commit-count" }, count(found.length, "commit")),
      h(
        "div",
        { class: "end" },
        chooser(
          "Author",
          "author",
          asked.author ?? "",
          [["", "Anyone"], ...contributorsOf(repo).map(({ user }) => [user, user])],
          (author) => visit(href("/repo/", { id: repo.id, tab: "commits", author })),
        ),
      ),
    ),
    h(
      "table",
      { class: "commits" },
      own.map((commit) =>
        h(
          "tr",
          {},
          h(
            "td",
            {},
            h("b", {}, commit.message),
            h("p", { class: "soft" }, `you · just now · ${commit.path}`),
          ),
        ),
      ),
      shown.map(row),
    ),
    pagination({ page, pages, address: (to) => href("/repo/", { ...asked, page: to }) }),
  );
}

function releasesTab(repo) {
  return h(
    "div",
    { class: "releases" },
    releasesOf(repo).map((release, at) =>
      h(
        "article",
        { class: "release", "data-version": release.version },
        h(
          "div",
          {},
          h("h2", {}, release.version),
          at ? null : h("span", { class: "chip" }, "Latest"),
          h("p", { class: "soft" }, dates.long(release.day)),
        ),
        h(
          "div",
          {},
          h(
            "ul",
            { class: "notes" },
            release.notes.map((note) => h("li", {}, note)),
          ),
          h(
            "table",
            { class: "assets" },
            release.assets.map((asset) =>
              h(
                "tr",
                { "data-asset": asset.name },
                h(
                  "td",
                  {},
                  h(
                    "button",
                    {
                      class: "plain link",
                      onclick: () => download(asset.name, `${repo.id} ${release.version}`),
                    },
                    icon("download", 15),
                    asset.name,
                  ),
                ),
                h("td", { class: "number" }, `${asset.size.toFixed(1)} MB`),
                h("td", { class: "number soft" }, `${grouped(asset.downloads)} downloads`),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function peopleTab(repo) {
  const list = contributorsOf(repo),
    most = list[0].commits;
  return h(
    "div",
    { class: "people" },
    list.map(({ user, commits, added }) =>
      h(
        "article",
        { "data-user": user },
        avatar(user, 42),
        h(
          "div",
          {},
          h("a", { href: href("/user/", { name: user }) }, h("b", {}, user)),
          h("p", { class: "soft" }, `${count(commits, "commit")}, ${grouped(added)} lines added`),
          h("i", { class: "bar" }, h("u", { style: { width: `${(commits / most) * 100}%` } })),
        ),
      ),
    ),
  );
}
