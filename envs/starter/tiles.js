// Nine tiles that fill the page, shared by `place`, `tone` and `colour`: told apart where the whole screenshot is 96 x 96 pixels to a model.
"use strict";

const PLACES = ["top", "middle", "bottom"].flatMap((row) =>
  ["left", "middle", "right"].map((column) => (row === column ? "middle" : `${row} ${column}`)),
);

/** Shows nine tiles in these colours. The first press on any of them ends the task. */
function showTiles(colours, wanted) {
  const main = document.querySelector("main");
  main.append(
    ...colours.map((colour, at) => {
      const press = () => furrow.finish(at === wanted, { pressed: PLACES[at] });
      return furrow.element("button", {
        class: "tile",
        style: `background: ${colour}`,
        "aria-label": PLACES[at],
        onclick: press,
      });
    }),
  );
}
