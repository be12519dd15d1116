// Small parts that several pages of the flight search use.

import { grouped, h } from "/kit/dom.js";
import { airline, city, clock, lasting } from "/world.js";

export const money = (dollars) => `$${grouped(dollars)}`;

export const badge = (name) =>
  h("span", { class: "badge", style: { "--hue": airline(name).hue } }, airline(name).code);

/** The legs of a flight with the waits between them. */
export function legTable(flight) {
  const wait = (at) => {
    const next = flight.legs[at + 1];
    return next
      ? h(
          "p",
          { class: "wait" },
          `Change in ${city(next.from).name}: ${lasting(next.depart - flight.legs[at].arrive)}`,
        )
      : null;
  };
  return flight.legs.map((leg, at) => [
    h(
      "p",
      { class: "leg" },
      h("b", {}, `${clock(leg.depart)} ${city(leg.from).name}`),
      " → ",
      h("b", {}, `${clock(leg.arrive)} ${city(leg.to).name}`),
      h("span", { class: "soft" }, ` ${leg.number} · ${leg.plane} · ${lasting(leg.arrive - leg.depart)}`),
    ),
    wait(at),
  ]);
}
