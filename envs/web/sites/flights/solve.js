// Demonstrations for the flight search.

const [, fromCity, toCity, day] =
  goal.match(/from ([A-Z][\w-]+(?: [A-Z]\w+)?) to ([A-Z][\w-]+(?: [A-Z]\w+)?) on (\w+ \d+, \d+)/) ?? [];
const backDay = goal.match(/and back on (\w+ \d+, \d+)/)?.[1];
/** Fills the search form as the goal has it; `people` are adults and children. */
const find = (people = [1, 0]) => {
  if (at("/search/")) return null;
  const form = one(".finder");
  if (!form) return press(one("#flights"));
  const place = (name, wanted) => {
    const field = one(`[name="${name}"]`, form);
    return field.value.startsWith(wanted) ? null : write(field, wanted, `${name} field`);
  };
  const travellers = () => {
    const shownNow = said(one("#people")),
      now = {
        adults: Number(shownNow.match(/(\d+) adult/)[1]),
        children: Number(shownNow.match(/(\d+) child/)?.[1] ?? 0),
      };
    for (const [key, wanted] of [
      ["adults", people[0]],
      ["children", people[1]],
    ]) {
      if (now[key] !== wanted)
        return one(".people-pane")
          ? press(one(`[aria-label="${now[key] < wanted ? "More" : "Fewer"} ${key}"]`))
          : press(one("#people"));
    }
    return null;
  };
  return (
    tick(backDay ? "Round trip" : "One way", form) ??
    place("from", fromCity) ??
    place("to", toCity) ??
    pickDay("depart", day, form) ??
    (backDay ? pickDay("back", backDay, form) : null) ??
    travellers() ??
    press(one("#search"))
  );
};
const filter = (text) => tick(text, one(".filters"), false);
const sortBy = (text) => drop(one("#sort"), text);
const flights = () => all(".flight");
/** Scrolls until the last of a list is in sight. */
const seeAll = (list) => {
  const { scroll: direction } = reach(list.at(-1));
  return direction ? scroll(direction) : null;
};
const select = () => press(one("button.primary", flights()[0]), "Select");
/** Opens the trip that the goal names. */
const unlock = () => {
  if (!at("/manage/")) return press(one("#manage"));
  const [, reference, surname] = goal.match(/reference (\w+), last name (\w+)/);
  if (one(`[data-reference="${reference}"]`)) return null;
  return fillIn({ reference, surname }) ?? press(one("#find"));
};
const trip = () => one(`[data-reference="${goal.match(/reference (\w+)/)[1]}"]`);
const dialog = one(".modal");
/** From the choice of a fare to the confirmation. */
const checkOut = (travellers, { seat, bags = 0 } = {}) => {
  if (one("#reference")) return null;
  if (at("/trip/")) return press(named("a", `Choose ${travellers.fare}`));
  if (one('[name="name0"]')) {
    const [, email] = goal.match(/email is ([^\s,]+),/),
      [, phone] = goal.match(/phone (\d+)\./);
    const people = Object.fromEntries(
      travellers.people.flatMap(([name, birth], at) => [
        [`name${at}`, name],
        [`born${at}`, birth],
      ]),
    );
    return fillIn({ ...people, email, phone }) ?? press(one("[data-next]"));
  }
  if (one(".seating"))
    return (
      (seat && !one(".seat.own[data-seat]") ? press(one(`[data-seat="${seat}"]`), `Seat ${seat}`) : null) ??
      press(one("[data-next]"))
    );
  if (one('[aria-label="More bags"]'))
    return Number(said(one(".stepper b"))) < bags
      ? press(one('[aria-label="More bags"]'))
      : press(one("[data-next]"));
  return fillCard() ?? tick("I accept", document, false) ?? press(one("#pay"));
};

const solutions = {
  "flights-gate": () => {
    const [, number, city] = goal.match(/flight (\w+ \d+) leave (.+) today/);
    const hint = (at("/status/") ? null : press(one("#status"))) ?? drop(one("#airport"), city);
    return hint ?? answer(said(one(".gate", one(`[data-number="${number}"]`))));
  },
  "flights-seat-of": () => unlock() ?? answer(fact("Seats", trip())),
  "flights-alert": () =>
    find() ?? (one("#track").checked ? answer("done") : press(one(".track"), "Track prices")),
  "flights-cheapest": () =>
    find() ??
    filter("Nonstop only") ??
    sortBy("Cheapest") ??
    answer(amount(said(one(".price b", flights()[0])))),
  "flights-fastest": () =>
    find() ??
    filter(quoted[0]) ??
    filter(quoted[1]) ??
    sortBy("Shortest") ??
    answer(said(one(".times b", flights()[0]))),
  "flights-count": () => {
    const prices = () => all(".flight .price b");
    return (
      find() ??
      filter("At most 1 stop") ??
      filter(quoted[0]) ??
      seeAll(prices()) ??
      answer(amount(said(prices().at(-1))) - amount(said(prices()[0])))
    );
  },
  "flights-week": () => {
    const hint = find();
    if (hint) return hint;
    // The strip moves along with the day that is chosen in it.
    if (!memory.day) {
      const price = (button) => amount(said(one("b", button)));
      keep({ day: all(".strip button").sort((a, b) => price(a) - price(b))[0].dataset.day });
    }
    return asked.get("depart") === memory.day
      ? answer(said(one(".times b", flights()[0])))
      : press(one(`.strip [data-day="${memory.day}"]`));
  },
  "flights-bags": () => {
    const wanted = Number(goal.match(/Add (\d+) checked/)[1]),
      hint = unlock();
    if (hint) return hint;
    if (memory.saved) return answer(amount(fact("Total", trip())));
    if (!dialog) return press(one(".bag-button", trip()));
    const now = Number(said(one(".stepper b", dialog)));
    if (memory.from === undefined) keep({ from: now });
    if (now < memory.from + wanted) return press(one('[aria-label="More bags"]', dialog));
    keep({ saved: true });
    return press(named("button", "Add and pay", dialog));
  },
  "flights-seat-change": () => {
    const seat = goal.match(/ to (\d+[A-F])\./)[1],
      hint = unlock();
    if (hint) return hint;
    if (fact("Seats", trip()) === seat) return answer("done");
    if (!dialog) return press(one(".seat-button", trip()));
    return one(`.seat.own[data-seat="${seat}"]`, dialog)
      ? press(named("button", "Save seat", dialog))
      : press(one(`[data-seat="${seat}"]`, dialog), `Seat ${seat}`);
  },
  "flights-check-in": () => {
    const hint = unlock();
    if (hint) return hint;
    if (fact("Check-in", trip())) return answer("done");
    if (!dialog) return press(one(".check-in", trip()));
    return (
      write(one('[name="passport"]'), goal.match(/number is (\w+),/)[1]) ??
      choose(one('[name="meal"]'), quoted[0]) ??
      tick("I carry no dangerous goods", dialog) ??
      press(named("footer button", "Check in", dialog))
    );
  },
  "flights-cancel": () => {
    const hint = unlock();
    if (hint) return hint;
    if (one(".status.cancelled")) return answer("done");
    return dialog
      ? (tick(quoted[0], dialog) ?? press(named("button", "Cancel trip", dialog)))
      : press(one(".cancel", trip()));
  },
  "flights-book": () => {
    const [, name, birth] = goal.match(/one adult, ([^,]+), born ([\d-]+)/),
      [, seat] = goal.match(/the seat (\w+)\./);
    if (at("/trip/") || at("/checkout/"))
      return checkOut({ people: [[name, birth]], fare: quoted[0] }, { seat }) ?? answer("done");
    return find() ?? filter("Nonstop only") ?? sortBy("Cheapest") ?? select();
  },
  "flights-round": () => {
    if (at("/trip/")) return answer(amount(said(one(".fare.classic .fare-price"))));
    return (
      find([2, 0]) ??
      (one(".outbound") ? sortBy("Cheapest") : (filter("Nonstop only") ?? sortBy("Earliest departure"))) ??
      select()
    );
  },
  "flights-family": () => {
    const travellers = [...goal.matchAll(/one (?:adult|child), ([^,]+), born ([\d-]+)/g)].map(
      ([, name, birth]) => [name, birth],
    );
    if (at("/trip/") || at("/checkout/"))
      return checkOut({ people: travellers, fare: "Flex" }, { bags: 2 }) ?? answer(said(one("#reference")));
    return find([1, 1]) ?? filter(quoted[0]) ?? sortBy("Earliest arrival") ?? select();
  },
};
return solutions[template]();
