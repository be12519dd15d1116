// A repository's files: folders, a file with its editor, and the search in them.

import { visit } from "/kit/address.js";
import { count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, state } from "/kit/site.js";
import { download, facts, field, validate } from "/kit/ui.js";
import { commitRules, filesNow } from "/transitions.js";
import { commitsOf } from "/world.js";
import { avatar, languageDot } from "/parts.js";

/** The tab of the files: a folder, a file, or the lines with a text. */
export function codeTab(repo, asked) {
  const path = asked.path ?? "",
    file = filesNow(state(), repo).find((one) => one.path === path);
  const inner = asked.find ? findings(repo, asked.find) : file ? fileView(repo, file) : listing(repo, path);
  const input = h("input", {
    type: "text",
    name: "find",
    value: asked.find ?? "",
    placeholder: "Find in files",
    "aria-label": "Find in files",
  });
  const parts = path ? path.split("/") : [];
  const trail = h(
    "p",
    { class: "trail" },
    h("a", { href: href("/repo/", { id: repo.id }) }, repo.name),
    parts.map((part, at) => [
      " / ",
      at < parts.length - 1
        ? h("a", { href: href("/repo/", { id: repo.id, path: parts.slice(0, at + 1).join("/") }) }, part)
        : h("b", {}, part),
    ]),
  );
  const readme = filesNow(state(), repo)[0]
    .text.split("\n")
    .filter(Boolean)
    .map((line) =>
      line.startsWith("## ")
        ? h("h3", {}, line.slice(3))
        : line.startsWith("# ")
          ? h("h2", {}, line.slice(2))
          : h("p", {}, line),
    );
  return h(
    "div",
    { class: "code" },
    h(
      "div",
      {},
      h(
        "div",
        { class: "row" },
        h("span", { class: "branch" }, "main"),
        trail,
        h(
          "form",
          {
            class: "end find-files",
            onsubmit: (event) => {
              event.preventDefault();
              visit(href("/repo/", { id: repo.id, find: tidy(input.value) }));
            },
          },
          input,
        ),
      ),
      inner,
      path || asked.find ? null : h("article", { class: "readme" }, readme),
    ),
    h(
      "aside",
      {},
      h("h2", {}, "About"),
      h("p", {}, repo.about),
      h(
        "p",
        { class: "topics" },
        repo.topics.map((topic) => h("a", { href: href("/search/", { topic }) }, topic)),
      ),
      facts([
        ["Language", languageDot(repo.language)],
        ["Licence", repo.license],
        ["Stars", grouped(repo.stars)],
        ["Forks", grouped(repo.forks)],
        ["Created", dates.short(repo.created)],
        ["Updated", dates.short(repo.updated)],
      ]),
      state().user === repo.owner ? h("p", { class: "soft" }, "This repository is yours.") : null,
    ),
  );
}

function listing(repo, path) {
  const under = filesNow(state(), repo)
    .map((file) => file.path)
    .filter((one) => !path || one.startsWith(`${path}/`))
    .map((one) => one.slice(path ? path.length + 1 : 0));
  const folders = [
      ...new Set(under.filter((one) => one.includes("/")).map((one) => one.split("/")[0])),
    ].sort(),
    plain = under.filter((one) => !one.includes("/")).sort();
  const commits = commitsOf(repo);
  const row = (name, folder) => {
    const full = path ? `${path}/${name}` : name,
      last =
        commits.find((commit) => (folder ? commit.path.startsWith(`${full}/`) : commit.path === full)) ??
        commits.at(-1);
    return h(
      "tr",
      {},
      h(
        "td",
        {},
        icon(folder ? "folder" : "file", 15),
        h("a", { href: href("/repo/", { id: repo.id, path: full }) }, name),
      ),
      h("td", { class: "soft" }, last.message),
      h("td", { class: "soft number" }, dates.short(last.day)),
    );
  };
  return h(
    "table",
    { class: "files" },
    h(
      "tr",
      {},
      h(
        "th",
        { colspan: 3 },
        avatar(commits[0].author, 20),
        h("b", {}, commits[0].author),
        ` ${commits[0].message}`,
        h("code", { class: "end" }, commits[0].hash),
      ),
    ),
    folders.map((name) => row(name, true)),
    plain.map((name) => row(name, false)),
  );
}

function fileView(repo, file) {
  const lines = file.text.split("\n"),
    mine = state().user === repo.owner;
  const frame = h("section", { class: "file" });
  const view = () =>
    fill(
      frame,
      h(
        "header",
        { class: "row" },
        h("b", {}, file.path),
        h("span", { class: "soft" }, `${count(lines.length, "line")}, ${file.text.length} bytes`),
        h(
          "span",
          { class: "end row" },
          mine ? h("button", { id: "edit", onclick: edit }, "Edit") : null,
          h(
            "button",
            { id: "raw", onclick: () => download(file.path.split("/").at(-1), file.text) },
            icon("download", 15),
            "Download",
          ),
        ),
      ),
      h(
        "ol",
        { class: "lines" },
        lines.map((line) => h("li", {}, h("code", {}, line || " "))),
      ),
    );
  const edit = () => {
    const area = h(
      "textarea",
      {
        name: "text",
        rows: String(Math.min(24, lines.length + 3)),
        spellcheck: "false",
        "aria-label": "File",
      },
      file.text,
    );
    const form = h(
      "form",
      {
        class: "editor",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, commitRules);
          if (!values) return;
          apply("commits.add", { id: repo.id, path: file.path, text: area.value, message: values.message });
          location.reload();
        },
      },
      area,
      field({ label: "Commit message", name: "message" }),
      h(
        "div",
        { class: "row" },
        h("button", { class: "primary", id: "commit" }, "Commit changes"),
        h("button", { type: "button", onclick: view }, "Cancel"),
      ),
    );
    fill(frame, h("header", { class: "row" }, h("b", {}, `Editing ${file.path}`)), form);
  };
  view();
  return frame;
}

function findings(repo, text) {
  const hits = filesNow(state(), repo).flatMap((file) =>
    file.text
      .split("\n")
      .map((line, at) => ({ file, line, at }))
      .filter(({ line }) => line.toLowerCase().includes(text.toLowerCase())),
  );
  return h(
    "section",
    { class: "file" },
    h("header", {}, h("b", { id: "hits" }, `${count(hits.length, "line")} with “${text}”`)),
    hits
      .slice(0, 40)
      .map(({ file, line, at }) =>
        h(
          "p",
          { class: "hit" },
          h("a", { href: href("/repo/", { id: repo.id, path: file.path }) }, file.path),
          h("i", {}, String(at + 1)),
          h("code", {}, line),
        ),
      ),
  );
}
