// The seat map: rows of three and three seats over an aisle.

import { fill, h } from "/kit/dom.js";
import { LEGROOM_PRICE, LETTERS, ROWS, SEAT_PRICE, hasLegroom, seatPrice } from "/world.js";

/** Lets each of `names` have a seat; `seats` is changed in place. `ondraw` is called after each choice. */
export function seatMap({ taken, names, seats, fareId, ondraw = () => {} }) {
  let active = Math.max(
    0,
    names.findIndex((_, at) => !seats[at]),
  );
  const node = h("div", { class: "seating" });
  const choose = (seat) => {
    seats[active] = seats[active] === seat ? null : seat;
    const free = names.findIndex((_, at) => !seats[at]);
    if (seats[active] && free >= 0) active = free;
    draw();
  };
  const cell = (seat) => {
    const owner = seats.indexOf(seat),
      kind = owner >= 0 ? "own" : taken.has(seat) ? "taken" : hasLegroom(seat) ? "room" : "";
    return h(
      "button",
      {
        type: "button",
        class: `seat ${kind}`,
        "data-seat": seat,
        "aria-label": `Seat ${seat}${taken.has(seat) ? ", taken" : ""}`,
        disabled: taken.has(seat) || (owner >= 0 && owner !== active),
        onclick: () => choose(seat),
      },
      owner >= 0 ? String(owner + 1) : "",
    );
  };
  const row = (number) =>
    h(
      "div",
      { class: "seat-row" },
      LETTERS.map((letter, at) => [at === 3 ? h("i", {}, String(number)) : null, cell(`${number}${letter}`)]),
    );
  const legend = [
    ["", `Seat${fareId === "basic" ? `, $${SEAT_PRICE}` : ", free"}`],
    ["room", `More room, $${LEGROOM_PRICE}`],
    ["taken", "Taken"],
    ["own", "Yours"],
  ];
  const draw = () => {
    fill(
      node,
      h(
        "div",
        { class: "sitters" },
        names.map((name, at) =>
          h(
            "button",
            {
              type: "button",
              class: "sitter",
              "aria-pressed": String(at === active),
              onclick: () => {
                active = at;
                draw();
              },
            },
            h("i", {}, String(at + 1)),
            h(
              "span",
              {},
              h("b", {}, name),
              h(
                "small",
                {},
                seats[at]
                  ? `Seat ${seats[at]}${seatPrice(seats[at], fareId) ? `, $${seatPrice(seats[at], fareId)}` : ""}`
                  : "No seat yet",
              ),
            ),
          ),
        ),
        h(
          "ul",
          { class: "seat-legend" },
          legend.map(([kind, text]) => h("li", {}, h("i", { class: `seat ${kind}` }), text)),
        ),
      ),
      h(
        "div",
        { class: "cabin" },
        h(
          "div",
          { class: "seat-row letters" },
          LETTERS.map((letter, at) => [at === 3 ? h("i", {}) : null, h("span", {}, letter)]),
        ),
        Array.from({ length: ROWS }, (_, at) => row(at + 1)),
      ),
    );
    ondraw();
  };
  draw();
  return node;
}
