// The pages of what the visitor keeps: notebook, history and settings.

import { add, fill, h, icon, tidy } from "/kit/dom.js";
import { apply, href, onChange, state } from "/kit/site.js";
import { download, field, radios, toast } from "/kit/ui.js";
import { DIGITS, UNIT_SYSTEMS } from "/transitions.js";

/** Rows as comma separated values (RFC 4180): a field with a comma, a quote or a line end stands in quotes. */
export const csv = (head, rows) =>
  [head, ...rows]
    .map((row) =>
      row.map((one) => (/[",\n]/.test(one) ? `"${String(one).replaceAll('"', '""')}"` : one)).join(","),
    )
    .join("\r\n");

export function notebookPage(world, main) {
  const draw = () => {
    const { notebook } = state();
    fill(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Notebook"),
        notebook.length
          ? h(
              "button",
              {
                class: "end",
                id: "export",
                onclick: () =>
                  download(
                    "notebook.csv",
                    csv(
                      ["Question", "What", "Answer", "Note"],
                      notebook.map(({ q, title, text, note }) => [q, title, text, note]),
                    ),
                    "text/csv",
                    { page: "notebook" },
                  ),
              },
              icon("download", 16),
              "Download as CSV",
            )
          : null,
      ),
      notebook.length
        ? notebook.map(noteCard)
        : h("p", { class: "notice" }, "Nothing saved yet. Every result has a “Save to notebook” below it."),
    );
  };
  draw();
  onChange(draw);
  return "Notebook";
}

function noteCard(entry) {
  const { q, id } = entry;
  const input = h("input", {
    type: "text",
    name: "note",
    value: entry.note,
    placeholder: "Add a note",
    "aria-label": `Note on ${entry.q}`,
  });
  return h(
    "article",
    { class: "panel noted", "data-q": entry.q },
    h("h2", {}, entry.q),
    h("p", { class: "text" }, entry.text),
    h("small", { class: "soft" }, entry.title),
    h(
      "form",
      {
        class: "row",
        onsubmit: (event) => {
          event.preventDefault();
          apply("notebook.note", { q, id, note: tidy(input.value) });
        },
      },
      input,
      h("button", {}, "Save note"),
      h(
        "button",
        {
          type: "button",
          class: "remove",
          onclick: () => apply("notebook.remove", { q, id }),
        },
        "Remove",
      ),
    ),
  );
}

export function historyPage(world, main) {
  const draw = () => {
    const { history } = state();
    fill(
      main,
      h("h1", {}, "History"),
      history.length
        ? h(
            "ul",
            { class: "history" },
            history.map((q) =>
              h(
                "li",
                { "data-q": q },
                h("a", { href: href("/ask/", { q }) }, q),
                h(
                  "button",
                  {
                    class: "plain",
                    "aria-label": `Forget ${q}`,
                    onclick: () => apply("history.forget", { q }),
                  },
                  icon("trash", 17),
                ),
              ),
            ),
          )
        : h("p", { class: "notice" }, "Nothing asked yet."),
    );
  };
  draw();
  onChange(draw);
  return "History";
}

export function settingsPage(world, main) {
  const { settings } = state(),
    chosen = { ...settings };
  const form = h(
    "form",
    {
      class: "panel settings",
      onsubmit: (event) => {
        event.preventDefault();
        const digits = Number(new FormData(form).get("digits"));
        apply("settings.save", { units: chosen.units, digits });
        toast("Your settings are saved.");
      },
    },
    h("h2", {}, "How answers look"),
    radios({
      title: "Units",
      name: "units",
      value: chosen.units,
      options: UNIT_SYSTEMS,
      onchange: (units) => {
        chosen.units = units;
      },
    }),
    field({
      label: "Digits of decimal numbers",
      name: "digits",
      options: DIGITS.map(String),
      value: String(settings.digits),
    }),
    h("button", { class: "primary", id: "save" }, "Save settings"),
  );
  add(main, h("h1", {}, "Settings"), form);
  return "Settings";
}
