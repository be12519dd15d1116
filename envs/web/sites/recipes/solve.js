// Demonstrations for the kitchen.

// The offer of a letter lies over the first recipe that is opened.
const letter = named(".modal footer button", "No, thanks");
if (letter) return press(letter);

const openRecipe = (title) => {
  if (at("/recipe/") && said(one(".about h1")) === title) return null;
  const link = all(".card h3 a").find((node) => said(node) === title);
  return link
    ? press(link)
    : (write(one(".find input"), title, "Search field") ?? (at("/recipes/") ? scroll("down") : key("Enter")));
};
const course = (name) =>
  at("/recipes/") && said(one("h1")) === name ? null : press(named(".courses a", name));
const pill = (text) => {
  const node = named(".pill", text);
  return node.classList.contains("on") ? null : press(node);
};
const diet = (text) =>
  pill(["Vegetarian", "Vegan", "Gluten-free"].find((name) => name.toLowerCase() === text));
const open = (id) => (at(`/${id}/`) ? null : press(one(`.bar #${id}`)));
const servings = (count) => {
  const now = Number(said(one("#servings")));
  return now === count ? null : press(one(`[aria-label="${now < count ? "More" : "Fewer"} servings"]`));
};
const ingredient = (name) =>
  said(
    one(
      "b",
      all(".ingredients li").find((row) => said(one("span", row)) === name),
    ),
  );
/** Scrolls until the last of a list is in sight. */
const seeAll = (list) => {
  const { scroll: direction } = reach(list.at(-1));
  return direction ? scroll(direction) : null;
};
const calories = () => all(".grid .card span").filter((node) => said(node).endsWith("kcal"));
const firstCard = () => one(".grid .card h3 a");
const planIt = (title, day, meal) => {
  if (memory.planned) return null;
  const hint = openRecipe(title);
  if (hint) return hint;
  if (one(".toast")) {
    keep({ planned: true });
    return null;
  }
  const dialog = one(".modal");
  return dialog
    ? (pickDay("day", day, dialog) ?? tick(meal, dialog) ?? press(named("button", "Add", dialog)))
    : press(one("#plan-it"));
};
const shopFor = (title, count) => {
  if (memory[title]) return null;
  const hint = openRecipe(title) ?? (count ? servings(count) : null);
  if (hint) return hint;
  if (one(".toast")) {
    keep({ [title]: true });
    return null;
  }
  return press(one("#shop"));
};

const solutions = {
  "recipes-calories": () =>
    openRecipe(quoted[0]) ?? tab("nutrition") ?? answer(amount(said(one(".nutrition td.number")))),
  "recipes-nutrition": () => {
    const [, name] = goal.match(/grams of (\w+) does/);
    return (
      openRecipe(quoted[0]) ??
      tab("nutrition") ??
      answer(
        amount(said(all(".nutrition tr").find((row) => said(row.cells[0]).toLowerCase() === name).cells[1])),
      )
    );
  },
  "recipes-save": () => {
    const dialog = one(".modal");
    return (
      openRecipe(quoted[0]) ??
      (one(".toast")
        ? answer("done")
        : dialog
          ? (tick("Favourites", dialog, false) ?? press(named("button", "Save", dialog)))
          : press(one("#save")))
    );
  },
  "recipes-shop": () => shopFor(quoted[0]) ?? answer("done"),
  "recipes-helpful": () =>
    openRecipe(quoted[0]) ??
    tab("reviews") ??
    drop(one("#review-sort"), "Most helpful") ??
    answer(said(one(".review small")).split(",")[0]),
  "recipes-scale": () =>
    openRecipe(quoted[0]) ??
    servings(Number(goal.match(/^For (\d+)/)[1])) ??
    answer(`${ingredient(quoted[1])}, ${ingredient(quoted[2])}`),
  "recipes-count": () => {
    const [, cuisine, kind, time] = goal.match(/every (\w+) recipe that is (\S+) and takes up to (\d+)/);
    return (
      (at("/recipes/") ? null : press(named(".bar nav a", "Recipes"))) ??
      drop(one("#cuisine"), cuisine) ??
      diet(kind) ??
      pill(`Up to ${time} min`) ??
      seeAll(calories()) ??
      answer(calories().reduce((sum, one) => sum + amount(said(one)), 0))
    );
  },
  "recipes-lightest": () => {
    const [, kind, name, time] = goal.match(/Which (\S+) recipe among the (\w+) that takes up to (\d+)/);
    return (
      course(name.charAt(0).toUpperCase() + name.slice(1)) ??
      diet(kind) ??
      pill(`Up to ${time} min`) ??
      drop(one("#sort"), "Fewest calories") ??
      answer(said(firstCard()))
    );
  },
  "recipes-rest": () => {
    const hint = openRecipe(quoted[0]);
    if (hint) return hint;
    if (!one(".cook")) return press(one("#cook"));
    const rests = said(one(".big-step")).match(/rest for (\d+) minutes/);
    return rests ? answer(rests[1]) : press(named(".cook button", "Next step"));
  },
  "recipes-plan": () => {
    const [, meal, day] = goal.match(/plan for (\w+) on (\w+ \d+, \d+)\./);
    return planIt(quoted[0], day, meal.charAt(0).toUpperCase() + meal.slice(1)) ?? answer("done");
  },
  "recipes-review": () => {
    const [title, headline, text] = quoted,
      rating = Number(goal.match(/with (\d) stars/)[1]);
    const hint = openRecipe(title) ?? tab("reviews");
    if (hint) return hint;
    if (one(".review.mine")) return answer("done");
    const given = all(".choice .on").length;
    return (
      (given === rating ? null : press(all(".choice button")[rating - 1])) ??
      write(one('[name="headline"]'), headline) ??
      write(one('textarea[name="text"]'), text) ??
      press(one("#send-review"))
    );
  },
  "recipes-total": () => {
    const [first, second, name] = quoted,
      count = Number(goal.match(/for (\d+) servings/)[1]);
    return (
      shopFor(first, count) ??
      shopFor(second) ??
      open("list") ??
      answer(
        amount(
          said(
            one(
              "b",
              all(".shopping li").find((row) => said(one("span", row)).toLowerCase() === name.toLowerCase()),
            ),
          ),
        ),
      )
    );
  },
  "recipes-collect": () => {
    const [, name, without] = goal.match(/among the (\w+) that is made without (.+) and takes/),
      [called] = quoted;
    if (at("/recipe/")) {
      if (one(".toast")) return answer("done");
      const dialog = one(".modal");
      return dialog
        ? (write(one('[name="fresh"]', dialog), called) ?? press(named("button", "Save", dialog)))
        : press(one("#save"));
    }
    const asked = new URLSearchParams(location.search);
    return (
      course(name.charAt(0).toUpperCase() + name.slice(1)) ??
      (asked.get("without") === without
        ? null
        : (write(one('[name="without"]'), without) ?? press(named("button", "Leave out")))) ??
      drop(one("#sort"), "Quickest") ??
      press(firstCard())
    );
  },
  "recipes-replan": () => {
    const [gone, fresh] = quoted;
    if (!memory.day) {
      if (!at("/plan/")) return open("plan");
      const dish = all(".dish").find((node) => said(one("a", node)) === gone);
      const cell = dish.closest("td"),
        [year, month, date] = cell.dataset.day.split("-").map(Number);
      const names = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
      ];
      keep({ day: `${names[month - 1]} ${date}, ${year}`, meal: cell.dataset.meal });
      return press(one("button", dish));
    }
    return planIt(fresh, memory.day, memory.meal) ?? answer("done");
  },
};
return solutions[template]();
