// The numbers of a picture as a table behind a click.

import { el, slug, table } from "./dom.js";

export function numbers(rows, names) {
  const id = `numbers-${slug(names.join(" "))}`;
  const fold = el("details", { class: "numbers", id }, el("summary", { id: `${id}-fold` }, "Numbers"));
  // Made when asked for: most people look at the picture.
  fold.addEventListener("toggle", () => {
    if (fold.open && fold.children.length === 1) {
      fold.append(
        table(
          names.map((name, at) => ({ name, of: (row) => row[at], numeric: at > 0 })),
          rows,
          names.join(" and "),
        ),
      );
    }
  });
  return fold;
}
