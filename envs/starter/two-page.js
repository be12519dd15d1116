// A staff list on one page, a badge to fill in from it on another. Print ends the task.
"use strict";

const FIRST = ["Mara", "Nils", "Oona", "Piet", "Runa", "Sten", "Tilda", "Ulf", "Vera", "Wim"];
const LAST = ["Quill", "Rask", "Strand", "Tolle", "Udall"];
const TEAMS = ["Castings", "Paint", "Gauges", "Stores", "Tools"];

furrow.task({
  name: "two-page",

  make(draw) {
    const names = draw.some(
      FIRST.flatMap((first) => LAST.map((last) => `${first} ${last}`)),
      9,
    );
    const staff = names.map((name) => ({
      name,
      team: draw.one(TEAMS),
      extension: String(draw.between(2000, 9899)),
      room: `${draw.one(["A", "B", "C"])} ${draw.between(10, 89)}`,
    }));
    const host = draw.one(staff);
    const goal = `Look up ${host.name} in the staff list. Then open New badge, enter that person's extension and room, and press Print.`;
    return { goal, staff, host, fields: draw.shuffled(["extension", "room"]), badge: draw.between(300, 999) };
  },

  show(world) {
    const shown = location.pathname.endsWith("two-page-badge.html") ? badgePage(world) : staffPage(world);
    document.querySelector("main").append(...shown);
  },
});

function staffPage({ staff }) {
  return [
    furrow.element(
      "div",
      { class: "row" },
      furrow.element("h1", {}, "Staff"),
      furrow.element("a", { class: "button end", id: "badge", href: "two-page-badge.html" }, "New badge"),
    ),
    furrow.element(
      "table",
      {},
      furrow.element(
        "tr",
        {},
        ...["Name", "Team", "Extension", "Room"].map((name) => furrow.element("th", {}, name)),
      ),
      ...staff.map(({ name, team, extension, room }) =>
        furrow.element(
          "tr",
          {},
          ...[name, team, extension, room].map((text) => furrow.element("td", {}, text)),
        ),
      ),
    ),
  ];
}

function badgePage({ host, fields, badge }) {
  const inputs = fields.map((name) =>
    furrow.element("input", { type: "text", name, spellcheck: "false", autocomplete: "off" }),
  );
  const print = () => {
    const printed = Object.fromEntries(inputs.map((input) => [input.name, furrow.tidy(input.value)]));
    furrow.finish(printed.extension === host.extension && printed.room === host.room, { printed });
  };
  return [
    furrow.element("p", {}, furrow.element("a", { href: "two-page.html" }, "Staff"), " / New badge"),
    furrow.element(
      "section",
      { class: "panel stack" },
      furrow.element("h1", {}, `Visitor badge ${badge}`),
      furrow.element("p", { class: "soft" }, "Whom does the visitor come to see?"),
      ...inputs.map((input) =>
        furrow.element(
          "label",
          { class: "field" },
          furrow.element("span", {}, `Host's ${input.name}`),
          input,
        ),
      ),
      furrow.element(
        "div",
        { class: "row" },
        furrow.element("button", { class: "primary end", id: "print", onclick: print }, "Print"),
      ),
    ),
  ];
}
