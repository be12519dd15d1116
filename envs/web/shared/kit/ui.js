// Components that many sites share. They look as each site's own style says; here is only how they behave.

import { $, $$, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { digits, email, filled } from "/kit/rules.js";
import { apply, state } from "/kit/site.js";

/** A message that stays until it is closed or replaced: nothing here moves by the clock. */
export function toast(text, kind = "info") {
  $(".toast")?.remove();
  const node = h(
    "div",
    { class: `toast ${kind}`, role: "status" },
    icon(kind === "error" ? "info" : "check", 18),
    h("span", {}, text),
    h("button", { class: "plain", "aria-label": "Dismiss", onclick: () => node.remove() }, icon("close", 16)),
  );
  document.body.append(node);
}

/** A dialog over the page; Escape, the cross and the ground behind it close it. Returns a function that closes it. */
export function modal({ title, body, actions = [], wide = false, onclose = () => {} }) {
  const close = () => {
    veil.remove();
    removeEventListener("keydown", key);
    onclose();
  };
  const key = (event) => {
    if (event.key === "Escape") close();
  };
  const box = h(
    "div",
    { class: `modal${wide ? " wide" : ""}`, role: "dialog", "aria-modal": "true", "aria-label": title },
    h(
      "header",
      {},
      h("h2", {}, title),
      h("button", { class: "plain", "aria-label": "Close", onclick: close }, icon("close")),
    ),
    h("div", { class: "modal-body" }, body),
    actions.length
      ? h(
          "footer",
          {},
          actions.map(({ text, primary, act }) =>
            h(
              "button",
              {
                class: primary ? "primary" : "",
                onclick: () => {
                  if (act() !== false) close();
                },
              },
              text,
            ),
          ),
        )
      : null,
  );
  const veil = h(
    "div",
    {
      class: "veil",
      onclick: (event) => {
        if (event.target === veil) close();
      },
    },
    box,
  );
  addEventListener("keydown", key);
  document.body.append(veil);
  return close;
}

/** The cookie banner of a first visit; any of its buttons ends it for good. */
export function cookieBanner({ name, text }) {
  if (state().cookies) return;
  const choose = (choice) => {
    apply("cookies", { choice });
    node.remove();
  };
  const node = h(
    "section",
    { class: "cookies", role: "region", "aria-label": "Cookies" },
    h("div", {}, h("b", {}, `${name} uses cookies`), h("p", {}, text)),
    h(
      "div",
      { class: "cookie-actions" },
      h("button", { onclick: () => choose("necessary") }, "Only necessary"),
      h("button", { class: "primary", onclick: () => choose("all") }, "Accept all"),
    ),
  );
  document.body.append(node);
}

/** A list to choose one of, opened by a button. `options`: [{ value, text }]. */
export function dropdown({ label, options, value, onchange, id }) {
  const shown = options.find((option) => option.value === value) ?? options[0];
  const list = h(
    "ul",
    { role: "listbox", hidden: true },
    options.map((option) =>
      h(
        "li",
        {
          role: "option",
          "data-value": option.value,
          "aria-selected": String(option === shown),
          onclick: () => {
            toggle(false);
            onchange(option.value);
          },
        },
        option.text,
      ),
    ),
  );
  const button = h(
    "button",
    {
      type: "button",
      "aria-haspopup": "listbox",
      "aria-expanded": "false",
      id,
      onclick: () => toggle(list.hidden),
    },
    label ? h("span", { class: "soft" }, `${label}:`) : null,
    h("span", { class: "chosen" }, shown.text),
    icon("down", 16),
  );
  const node = h("div", { class: "dropdown" }, button, list);
  const toggle = (open) => {
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  document.addEventListener("click", (event) => {
    if (!node.contains(event.target)) toggle(false);
  });
  return node;
}

/** Suggestions below a text field. `suggest(text)` gives [{ text, detail, act }]; arrows, Enter and the mouse choose. */
export function autocomplete(input, suggest) {
  const list = h("ul", { class: "suggestions", role: "listbox", hidden: true });
  let found = [],
    at = -1;
  const close = () => {
    list.hidden = true;
    at = -1;
  };
  const mark = () =>
    $$("li", list).forEach((item, index) => item.setAttribute("aria-selected", String(index === at)));
  const show = () => {
    found = suggest(input.value);
    at = -1;
    fill(
      list,
      found.map(({ text, detail, act }) =>
        h(
          "li",
          {
            role: "option",
            "aria-selected": "false",
            onmousedown: (event) => {
              event.preventDefault();
              close();
              act();
            },
          },
          h("span", {}, text),
          detail ? h("small", {}, detail) : null,
        ),
      ),
    );
    list.hidden = !found.length;
  };
  input.setAttribute("autocomplete", "off");
  input.addEventListener("input", show);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = (at + (event.key === "ArrowDown" ? 1 : found.length)) % found.length;
      mark();
      event.preventDefault();
    } else if (event.key === "Enter") {
      if (at >= 0) {
        event.preventDefault();
        found[at].act();
      }
      close();
    } else if (event.key === "Escape") close();
  });
  const frame = h("div", { class: "autocomplete" });
  input.replaceWith(frame);
  frame.append(input, list);
  return frame;
}

/** Links to pages: first, last, and those near the page shown. */
export function pagination({ page, pages, address }) {
  if (pages <= 1) return null;
  const near = [...new Set([1, page - 1, page, page + 1, pages])]
    .filter((one) => one >= 1 && one <= pages)
    .sort((a, b) => a - b);
  const items = near.flatMap((one, index) => (index && one - near[index - 1] > 1 ? ["…", one] : [one]));
  const link = (to, content, label) =>
    h(
      "a",
      {
        href: address(to),
        "aria-label": label,
        "aria-current": to === page && typeof content === "string" ? "page" : null,
      },
      content,
    );
  return h(
    "nav",
    { class: "pagination", "aria-label": "Pages" },
    page > 1 ? link(page - 1, [icon("back", 16), "Previous"], "Previous page") : null,
    items.map((one) => (one === "…" ? h("span", {}, "…") : link(one, String(one), `Page ${one}`))),
    page < pages ? link(page + 1, ["Next", icon("next", 16)], "Next page") : null,
  );
}

/** Tabs over panels: [{ id, title, panel() }]. The open one is kept in the address. */
export function tabs(list) {
  const named = () => list.find(({ id }) => `#${id}` === location.hash) ?? list[0];
  const panel = h("div", { class: "panel", role: "tabpanel" });
  const buttons = list.map(({ id, title }) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        "data-tab": id,
        onclick: () => {
          history.replaceState(null, "", `#${id}`);
          show();
        },
      },
      title,
    ),
  );
  const show = () => {
    const open = named();
    buttons.forEach((button) => button.setAttribute("aria-selected", String(button.dataset.tab === open.id)));
    fill(panel, open.panel());
  };
  show();
  return h("section", { class: "tabs" }, h("div", { class: "tab-row", role: "tablist" }, buttons), panel);
}

/** A labelled field. Its error is shown by `validate`. */
export function field({
  label,
  name,
  type = "text",
  value = "",
  hint,
  wide = false,
  placeholder,
  options,
  required = true,
}) {
  const input = options
    ? h(
        "select",
        { name, id: `field-${name}` },
        options.map((option) =>
          h(
            "option",
            { value: option.value ?? option, selected: (option.value ?? option) === value },
            option.text ?? option,
          ),
        ),
      )
    : type === "textarea"
      ? h("textarea", { name, id: `field-${name}`, rows: "4", placeholder, spellcheck: "false" }, value)
      : h("input", {
          type,
          name,
          id: `field-${name}`,
          value,
          placeholder,
          autocomplete: "off",
          spellcheck: "false",
        });
  return h(
    "label",
    { class: `field${wide ? " wide" : ""}`, for: `field-${name}` },
    h("span", {}, label, required ? null : h("small", { class: "soft" }, " (optional)")),
    input,
    hint ? h("small", { class: "soft" }, hint) : null,
    h("small", { class: "error", role: "alert" }),
  );
}

/** Checks a form: `rules` maps a field's name to (value, values) => problem or "". Shows every problem; returns the values or null. */
export function validate(form, rules) {
  const values = Object.fromEntries(
    [...new FormData(form)].map(([name, value]) => [
      name,
      typeof value === "string" ? value.trim().replace(/\s+/g, " ") : "",
    ]),
  );
  let first = null;
  for (const [name, rule] of Object.entries(rules)) {
    const problem = rule(values[name] ?? "", values);
    const input = form.elements[name];
    const frame = (input instanceof RadioNodeList ? input[0] : input).closest(".field");
    $(".error", frame).textContent = problem || "";
    frame.classList.toggle("bad", Boolean(problem));
    if (problem && !first) first = input;
  }
  return first ? null : values;
}

/** Rules many forms need. */
export const rules = { filled, email, digits };

/**
 * A field that opens a calendar. `value` and `onpick` are ISO days; days before `min`, after `max` or refused by `open` cannot be chosen.
 * The field is not typed into.
 */
export function datePicker({
  label,
  name,
  value,
  shown,
  min,
  max,
  open = () => true,
  onpick,
  format = dates.short,
}) {
  let month = shown ?? (value || min);
  const input = h("input", {
    type: "text",
    name,
    id: `field-${name}`,
    readonly: true,
    value: value ? format(value) : "",
    placeholder: "Choose a date",
    "data-day": value ?? "",
  });
  const pane = h("div", { class: "calendar", role: "dialog", "aria-label": `Choose ${label}`, hidden: true });
  const frame = h(
    "div",
    { class: "field date-field" },
    h("label", { for: `field-${name}` }, label),
    h("div", { class: "date-input" }, icon("calendar", 18), input),
    pane,
    h("small", { class: "error", role: "alert" }),
  );
  const choosable = (day) => day >= min && (!max || day <= max) && open(day);
  const turn = (by) => {
    const y = dates.year(month),
      m = dates.month(month) + by;
    month = dates.day(y, m, 1);
    draw();
  };
  const pick = (day) => {
    value = day;
    input.value = format(day);
    input.dataset.day = day;
    pane.hidden = true;
    onpick(day);
  };
  const draw = () => {
    const y = dates.year(month),
      m = dates.month(month),
      first = dates.day(y, m, 1);
    const blanks = Array.from({ length: dates.weekdayIndex(first) }, () => h("span"));
    const days = Array.from({ length: dates.daysInMonth(y, m) }, (_, index) => dates.plus(first, index));
    fill(
      pane,
      h(
        "div",
        { class: "calendar-head" },
        h(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": "Previous month",
            disabled: first <= min,
            onclick: () => turn(-1),
          },
          icon("back", 18),
        ),
        h("b", {}, `${dates.MONTHS[m - 1]} ${y}`),
        h(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": "Next month",
            disabled: Boolean(max) && dates.plus(first, days.length) > max,
            onclick: () => turn(1),
          },
          icon("next", 18),
        ),
      ),
      h(
        "div",
        { class: "calendar-days" },
        ["Su", "Mo", "Tu", "We", "Th", "Fr", "Sa"].map((day) => h("i", {}, day)),
        blanks,
        days.map((day) =>
          h(
            "button",
            {
              type: "button",
              "data-day": day,
              class: day === value ? "chosen" : "",
              "aria-label": dates.long(day),
              disabled: !choosable(day),
              onclick: () => pick(day),
            },
            String(dates.dayOfMonth(day)),
          ),
        ),
      ),
    );
  };
  input.addEventListener("click", () => {
    pane.hidden = !pane.hidden;
    draw();
  });
  document.addEventListener("click", (event) => {
    if (event.isTrusted && event.target.isConnected && !frame.contains(event.target)) pane.hidden = true;
  });
  return frame;
}

/** Adds more when the end of what is shown comes near. `more()` gives the next nodes, none when there are no more. */
export function infinite(list, more) {
  const foot = h("p", { class: "soft infinite-foot" }, "Loading more…");
  list.after(foot);
  const look = () => {
    while (foot.isConnected && foot.getBoundingClientRect().top < innerHeight + 200) {
      const next = more();
      if (!next.length) {
        foot.textContent = "You have reached the end.";
        removeEventListener("scroll", look);
        return;
      }
      list.append(...next);
    }
  };
  addEventListener("scroll", look);
  look();
}

/** A table whose columns sort. `columns`: [{ title, value(row), cell(row), number }]. */
export function sortable({ columns, rows, by = null, descending = false }) {
  const table = h("table", { class: "sortable" });
  const draw = () => {
    const ordered = [...rows];
    if (by !== null) {
      const { value } = columns[by];
      ordered.sort((a, b) => {
        const x = value(a),
          y = value(b);
        return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1);
      });
    }
    fill(
      table,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map(({ title, value, number }, index) =>
            h(
              "th",
              {
                class: number ? "number" : "",
                "aria-sort": by === index ? (descending ? "descending" : "ascending") : null,
              },
              value
                ? h(
                    "button",
                    {
                      type: "button",
                      class: "plain",
                      onclick: () => {
                        descending = by === index ? !descending : false;
                        by = index;
                        draw();
                      },
                    },
                    title,
                    by === index ? (descending ? " ▾" : " ▴") : "",
                  )
                : title,
            ),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        ordered.map((row) =>
          h(
            "tr",
            {},
            columns.map(({ value, cell, number }) =>
              h("td", { class: number ? "number" : "" }, cell ? cell(row) : String(value(row))),
            ),
          ),
        ),
      ),
    );
  };
  draw();
  return table;
}

/** A group of boxes to tick. Options are texts or { value, text }; `onchange` gets the values that are ticked then. */
export function ticks({ title, name, chosen, options, onchange }) {
  const box = (value, text) =>
    h(
      "label",
      { class: "check" },
      h("input", {
        type: "checkbox",
        name,
        value,
        checked: chosen.includes(value),
        onchange: ({ target }) =>
          onchange(target.checked ? [...chosen, value] : chosen.filter((one) => one !== value)),
      }),
      text,
    );
  return h(
    "fieldset",
    { class: "choices" },
    h("legend", {}, title),
    options.map((option) => box(option.value ?? option, option.text ?? option)),
  );
}

/** A group of buttons of which one is down. Options are texts or { value, text }. */
export function radios({ title, name, value, options, onchange = () => {} }) {
  const button = (own, text) =>
    h(
      "label",
      { class: "check" },
      h("input", { type: "radio", name, value: own, checked: own === value, onchange: () => onchange(own) }),
      text,
    );
  return h(
    "fieldset",
    { class: "choices" },
    h("legend", {}, title),
    options.map((option) => button(option.value ?? option, option.text ?? option)),
  );
}

/** A choice from a short list of [value, text], as `dropdown` shows it. */
export const chooser = (label, id, value, options, onchange) =>
  dropdown({ label, id, value, onchange, options: options.map(([own, text]) => ({ value: own, text })) });

/** Terms and what stands for them: [[term, content]]. */
export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([term, content]) => [h("dt", {}, term), h("dd", {}, content)]),
  );

/** One page of a list: { shown, page, pages }. Pages count from 1; one that does not exist becomes the nearest. */
export function leaf(list, page, size) {
  const pages = Math.max(1, Math.ceil(list.length / size)),
    at = Math.min(Math.max(1, Number(page) || 1), pages);
  return { shown: list.slice((at - 1) * size, at * size), page: at, pages };
}

/**
 * Saves a text as a file, as a browser does it, and notes it by the site's transition "download": `{ file }`, and what `about` says of it. Where
 * the browser takes no downloads (the farm's does not) the file goes nowhere; that it was asked for counts.
 */
export function download(name, text, type = "text/plain", about = {}) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  // The browser has taken what it wants of the address once the click returned.
  URL.revokeObjectURL(address);
  apply("download", { file: name, ...about });
  toast(`${name} downloaded`);
}

/** Where a card is entered; its fields are held to the `cardRules` of /kit/rules.js. */
export const cardFields = () => [
  field({ label: "Card number", name: "card", wide: true }),
  field({ label: "Name on card", name: "holder", wide: true }),
  field({ label: "Expiry (MM/YY)", name: "expiry" }),
  field({ label: "Security code", name: "code" }),
];

/**
 * Puts something into the visitor's own lists, takes it out, makes new lists. In the state the lists stand under `key`, each with its `name` and, under
 * `members`, the ids in it; `done` is called after each change. The site has the transitions `<word>.toggle` and `<word>.create`, of `{ name, id }`.
 */
export function listsDialog({ title, word, key, members, id, done = () => {} }) {
  const prompt = `Name of a new ${word}`;
  const boxes = h("div", {}),
    input = h("input", { type: "text", name: word, placeholder: prompt, "aria-label": prompt });
  const toggle = (name) => {
    apply(`${word}.toggle`, { name, id });
    draw();
  };
  const draw = () => {
    fill(
      boxes,
      state()[key].map((list) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: list[members].includes(id),
            onchange: () => toggle(list.name),
          }),
          list.name,
        ),
      ),
    );
    done();
  };
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        const name = tidy(input.value);
        if (!name || state()[key].some((list) => list.name === name)) return;
        apply(`${word}.create`, { name, id });
        input.value = "";
        draw();
      },
    },
    input,
    h("button", { id: "create" }, "Create"),
  );
  draw();
  modal({ title, body: h("div", {}, boxes, form), actions: [{ text: "Done", primary: true, act() {} }] });
}
