// Demonstrations for the map service.

const title = () => said(one("main h1"));
/** From anywhere to a place, through the search field. */
const openPlace = (name) => {
  if (at("/place/") && title() === name) return null;
  const link = named(".result h3 a", name);
  return link && at("/search/")
    ? press(link)
    : (write(one('.find [name="q"]'), name, "Search field") ?? key("Enter"));
};
const weekday = goal.match(/on a (\w+day)/)?.[1],
  hour = goal.match(/at (\d\d:00)/)?.[1];
const KINDS = [
  "Restaurant",
  "Café",
  "Hotel",
  "Museum",
  "Pharmacy",
  "Supermarket",
  "Cinema",
  "Library",
  "Bank",
  "Petrol station",
];
const kind = KINDS.find(
  (one) => goal.includes(`the ${plural(one)}`) || goal.includes(`the two ${plural(one)}`),
);
function plural(one) {
  return (
    { Café: "cafés", Library: "libraries", Pharmacy: "pharmacies", "Petrol station": "petrol stations" }[
      one
    ] ?? `${one.toLowerCase()}s`
  );
}
const openKind = () =>
  at("/search/")
    ? drop(one(".tools .dropdown button"), kind)
    : press(all(".kinds a").find((link) => said(link).endsWith(kind)) ?? one(".logo"));
const unfold = () => (one(".filters").open ? null : press(one(".filters summary")));
const filter = (text) => unfold() ?? tick(text, one(".filters"));
const openAt = () => unfold() ?? drop(one("#day"), weekday) ?? drop(one("#hour"), hour);
const sortBy = (text) => drop(one("#sort"), text);
const firstName = () => said(one(".result h3"));
const route = (from, to, via = null) => {
  if (!at("/directions/")) return press(one("#directions"));
  const fields = () =>
    write(one('[name="from"]'), from) ??
    (via ? write(one('[name="via"]'), via) : null) ??
    write(one('[name="to"]'), to);
  return (
    (via && !one('[name="via"]') ? press(one("#add-stop")) : null) ??
    fields() ??
    (one(".summary") ? null : press(one("#route")))
  );
};
const means = (text) => {
  const button = all(".modes button").find((node) => said(node) === text);
  return button.getAttribute("aria-pressed") === "true" ? null : press(button);
};
const metres = () => amount(said(one("#length")).replace(" m", ""));
const dialog = one(".modal");

const solutions = {
  "maps-phone": () => openPlace(quoted[0]) ?? answer(fact("Phone")),
  "maps-closing": () =>
    openPlace(quoted[0]) ??
    answer(said(all(".hours tr").find((row) => said(row.cells[0]) === weekday).cells[1])),
  "maps-save": () => {
    for (const name of quoted.slice(0, 2)) {
      if (memory[name]) continue;
      const hint =
        openPlace(name) ??
        (dialog ? tick(quoted[2], dialog) : said(one("#save")) === "Saved" ? null : press(one("#save")));
      if (hint) return hint;
      keep({ [name]: true });
      return press(named("footer button", "Done", dialog));
    }
    return answer("done");
  },
  "maps-layer": () => {
    const wanted = Number(goal.match(/zoom (\d)/)[1]),
      layer = one(`[data-layer="${quoted[1].toLowerCase()}"]`, one(".layers"));
    const hint =
      openPlace(quoted[0]) ?? (layer.getAttribute("aria-pressed") === "true" ? null : press(layer));
    return (
      hint ?? (Number(said(one("#zoom"))) < wanted ? press(one('[aria-label="Zoom in"]')) : answer("done"))
    );
  },
  "maps-best": () => openKind() ?? filter(quoted[0]) ?? sortBy("Highest rated") ?? answer(firstName()),
  "maps-open": () => openKind() ?? openAt() ?? answer(firstName()),
  "maps-nearest": () =>
    one(".near") ? (openKind() ?? answer(firstName())) : (openPlace(quoted[0]) ?? press(one("#nearby"))),
  "maps-walk": () => route(quoted[0], quoted[1]) ?? means(quoted[2]) ?? answer(metres()),
  "maps-turn": () =>
    route(quoted[0], quoted[1]) ?? answer(all(".steps li b").slice(1, 3).map(said).join(", ")),
  "maps-review-read": () =>
    openPlace(quoted[0]) ??
    tab("reviews") ??
    drop(one("#review-sort"), "Lowest") ??
    answer(said(one(".review b"))),
  "maps-edit": () => {
    const hint = openPlace(quoted[0]);
    if (hint) return hint;
    if (one(".toast")) return answer("done");
    return dialog
      ? (choose(one('[name="what"]'), "Phone number") ??
          write(one('[name="right"]'), goal.match(/wrong, ([\d ]+) is right/)[1]) ??
          press(named("footer button", "Send", dialog)))
      : press(one("#suggest"));
  },
  "maps-review": () => {
    const stars = goal.match(/with (\d) star/)[1],
      hint = openPlace(quoted[0]) ?? tab("reviews");
    if (hint) return hint;
    if (one(".toast")) return answer("done");
    if (!dialog) return press(one("#write"));
    const mark = all(".marks button")[stars - 1];
    return (
      (mark.getAttribute("aria-checked") === "true" ? null : press(mark)) ??
      write(one('[name="text"]'), quoted[1]) ??
      choose(one('[name="when"]'), quoted[2]) ??
      press(named("footer button", "Post review", dialog))
    );
  },
  "maps-route": () => route(quoted[0], quoted[2], quoted[1]) ?? means("Bicycle") ?? answer(metres()),
  "maps-list": () => {
    const [list, feature, note] = quoted;
    if (!memory.names) {
      const hint = openKind() ?? filter(feature) ?? sortBy("Highest rated");
      if (hint) return hint;
      keep({ names: all(".result h3").slice(0, 2).map(said) });
    }
    for (const name of memory.names) {
      if (memory[name]) continue;
      const hint = openPlace(name) ?? (dialog ? null : press(one("#save")));
      if (hint) return hint;
      const box = named("label", list, dialog);
      const next = box ? tick(list, dialog) : write(one('[name="list"]', dialog), list);
      if (next) return next;
      keep({ [name]: true });
      return press(named("footer button", "Done", dialog));
    }
    if (!at("/saved/")) return press(one("#saved"));
    const own = one(`[data-list="${list}"]`);
    if (one(".note", own)) return answer("done");
    return dialog
      ? (write(one('[name="note"]', dialog), note) ?? press(named("footer button", "Save note", dialog)))
      : press(one(".note-button", own));
  },
  "maps-errand": () => {
    if (!memory.name) {
      const hint = one(".near") ? (openKind() ?? openAt()) : (openPlace(quoted[0]) ?? press(one("#nearby")));
      if (hint) return hint;
      keep({ name: firstName() });
    }
    return route(quoted[0], memory.name) ?? means("Walk") ?? answer(metres());
  },
};
return solutions[template]();
