// The kitchen's pages.

import { visit } from "/kit/address.js";
import { $, add, capital, count, fill, h, icon, stars, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { email as emailProblem } from "/kit/rules.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  datePicker,
  dropdown,
  field,
  infinite,
  modal,
  tabs,
  toast,
  validate,
} from "/kit/ui.js";
import {
  COURSES,
  CUISINES,
  DIETS,
  KITCHEN,
  MEALS,
  food,
  freshState,
  hours,
  makeWorld,
  measure,
  reviewsOf,
  search,
} from "/world.js";
import { plate } from "/pictures.js";
import {
  FAVOURITES,
  MOST_SERVINGS,
  planDays,
  planRules,
  ratingProblem,
  reviewRules,
  transitions,
} from "/transitions.js";

const PAGES = {
  "": homePage,
  recipes: searchPage,
  recipe: recipePage,
  collections: collectionsPage,
  plan: planPage,
  list: listPage,
};

site({
  name: "recipes",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "offer", "list"],
  show(world) {
    const main = h("main", {});
    document.body.append(header(world), main, footer());
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? KITCHEN} | ${KITCHEN}`;
    cookieBanner({
      name: KITCHEN,
      text: "They keep your shopping list and help us see which recipes are cooked. Choose what you allow.",
    });
    offer();
  },
});

// ---- around every page ----

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: query().q ?? "",
    placeholder: "Search recipes or ingredients",
    "aria-label": "Search",
  });
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href("/recipes/", { q: tidy(input.value) }));
      },
    },
    icon("search", 18),
    input,
  );
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : world.recipes
          .filter(({ title }) => title.toLowerCase().includes(wanted))
          .slice(0, 6)
          .map((recipe) => ({
            text: recipe.title,
            detail: hours(recipe.total),
            act: () => visit(href("/recipe/", { id: recipe.id })),
          }));
  });
  const badge = h("b", {});
  const refresh = () => {
    badge.textContent = String(state().list.filter(({ done }) => !done).length);
  };
  onChange(refresh);
  refresh();
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "bar" },
      h("a", { class: "logo", href: "/" }, "Saltbox", h("i", {})),
      form,
      h(
        "nav",
        {},
        h("a", { href: "/recipes/" }, "Recipes"),
        h("a", { href: "/collections/", id: "collections" }, icon("heart", 18), "Collections"),
        h("a", { href: "/plan/", id: "plan" }, icon("calendar", 18), "Meal plan"),
        h("a", { href: "/list/", id: "list" }, icon("cart", 18), "Shopping list ", badge),
      ),
    ),
    h(
      "nav",
      { class: "courses" },
      COURSES.map((course) =>
        h(
          "a",
          { href: href("/recipes/", { course }), "aria-current": query().course === course ? "page" : null },
          course,
        ),
      ),
    ),
  );
}

const footer = () =>
  h(
    "footer",
    { class: "bottom" },
    h("b", {}, KITCHEN),
    h(
      "p",
      {},
      "Recipes tested in home kitchens. Amounts are for the servings shown; oven temperatures are without fan.",
    ),
    h(
      "p",
      {},
      h("a", { href: "/recipes/" }, "All recipes"),
      " · ",
      h("a", { href: "/plan/" }, "Meal plan"),
      " · ",
      h("a", { href: "/list/" }, "Shopping list"),
    ),
  );

/** The letter that many sites ask visitors to sign up for, once, on the first recipe they open. */
function offer() {
  if (state().offer || !location.pathname.startsWith("/recipe/")) return;
  const input = h("input", {
    type: "email",
    name: "letter",
    placeholder: "Your email",
    "aria-label": "Your email",
  });
  const dismiss = (how) => apply("offer.dismiss", { how });
  modal({
    title: "Dinner, decided",
    onclose: () => {
      if (!state().offer) dismiss("closed");
    },
    body: h(
      "div",
      { class: "offer" },
      h("p", {}, "Five weeknight recipes in your inbox every Sunday."),
      input,
    ),
    actions: [
      { text: "No, thanks", act: () => dismiss("declined") },
      {
        text: "Sign me up",
        primary: true,
        act: () => {
          const email = tidy(input.value);
          const problem = emailProblem(email);
          if (problem) {
            toast(problem, "error");
            return false;
          }
          apply("offer.accept", { email });
        },
      },
    ],
  });
}

const link = (recipe) => href("/recipe/", { id: recipe.id });

function card(recipe) {
  return h(
    "article",
    { class: "card", "data-id": recipe.id },
    h("a", { href: link(recipe) }, plate(recipe)),
    h(
      "div",
      { class: "card-text" },
      h("small", {}, `${recipe.course} · ${recipe.cuisine}`),
      h("h3", {}, h("a", { href: link(recipe) }, recipe.title)),
      h(
        "p",
        { class: "row" },
        stars(recipe.rating, 13),
        h("span", {}, recipe.rating.toFixed(1)),
        h("span", { class: "soft" }, `(${recipe.ratings.length})`),
      ),
      h(
        "p",
        { class: "row soft" },
        icon("clock", 15),
        hours(recipe.total),
        h("span", {}, `${recipe.nutrition.Calories} kcal`),
      ),
      recipe.diets.length
        ? h(
            "p",
            { class: "diets" },
            recipe.diets.map((diet) => h("i", {}, diet)),
          )
        : null,
    ),
  );
}

function homePage(world, main) {
  const [first, ...more] = search(world, { sort: "rating" });
  add(
    main,
    h(
      "section",
      { class: "lead" },
      plate(first, true),
      h(
        "div",
        {},
        h("small", {}, "Recipe of the day"),
        h("h1", {}, first.title),
        h(
          "p",
          {},
          `${first.author} cooks this ${first.cuisine} dish in ${hours(first.total)}. ${first.steps[1]}`,
        ),
        h("a", { class: "button primary", href: link(first) }, "See the recipe"),
      ),
    ),
    h("section", {}, h("h2", {}, "Highest rated"), h("div", { class: "grid" }, more.slice(0, 4).map(card))),
    h(
      "section",
      {},
      h("h2", {}, "On the table in half an hour"),
      h("div", { class: "grid" }, search(world, { time: 30 }).slice(0, 4).map(card)),
    ),
    h(
      "section",
      {},
      h("h2", {}, "New this month"),
      h("div", { class: "grid" }, search(world, { sort: "newest" }).slice(0, 4).map(card)),
    ),
  );
  return "Recipes that work";
}

function searchPage(world, main) {
  const asked = query();
  const diets = asked.diets ? asked.diets.split("|") : [];
  const found = search(world, { ...asked, diets, time: Number(asked.time) || 0 });
  const go = (changes) => visit(href("/recipes/", { ...asked, ...changes }));
  const pill = (text, on, act) =>
    h("button", { class: `pill${on ? " on" : ""}`, "aria-pressed": String(on), onclick: act }, text);
  const without = h("input", {
    type: "text",
    name: "without",
    value: asked.without ?? "",
    placeholder: "Without…",
    "aria-label": "Without ingredient",
  });
  const sorts = [
    ["popular", "Most popular"],
    ["rating", "Highest rated"],
    ["quick", "Quickest"],
    ["light", "Fewest calories"],
    ["newest", "Newest"],
  ].map(([value, text]) => ({ value, text }));
  const grid = h("div", { class: "grid" });
  add(
    main,
    h(
      "div",
      { class: "row" },
      h(
        "div",
        {},
        h("h1", {}, asked.q ? `Recipes for “${asked.q}”` : asked.course || "All recipes"),
        h("p", { class: "soft", id: "found" }, count(found.length, "recipe")),
      ),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Sort",
          id: "sort",
          options: sorts,
          value: asked.sort ?? "popular",
          onchange: (sort) => go({ sort }),
        }),
      ),
    ),
    h(
      "section",
      { class: "filters" },
      h(
        "div",
        { class: "row wrap" },
        h("b", {}, "Diet"),
        DIETS.map((diet) =>
          pill(diet, diets.includes(diet), () =>
            go({
              diets: (diets.includes(diet) ? diets.filter((one) => one !== diet) : [...diets, diet]).join(
                "|",
              ),
            }),
          ),
        ),
      ),
      h(
        "div",
        { class: "row wrap" },
        h("b", {}, "Time"),
        [15, 30, 45, 60].map((time) =>
          pill(`Up to ${time} min`, asked.time === String(time), () =>
            go({ time: asked.time === String(time) ? "" : time }),
          ),
        ),
      ),
      h(
        "div",
        { class: "row wrap" },
        dropdown({
          label: "Cuisine",
          id: "cuisine",
          value: asked.cuisine ?? "",
          options: [{ value: "", text: "Any" }, ...CUISINES.map((value) => ({ value, text: value }))],
          onchange: (cuisine) => go({ cuisine }),
        }),
        dropdown({
          label: "Course",
          id: "course",
          value: asked.course ?? "",
          options: [{ value: "", text: "Any" }, ...COURSES.map((value) => ({ value, text: value }))],
          onchange: (course) => go({ course }),
        }),
        h(
          "form",
          {
            class: "row",
            onsubmit: (event) => {
              event.preventDefault();
              go({ without: tidy(without.value) });
            },
          },
          without,
          h("button", {}, "Leave out"),
        ),
        h("a", { class: "end", href: "/recipes/" }, "Clear filters"),
      ),
    ),
    found.length ? grid : h("p", { class: "notice" }, "No recipe fits. Take a filter away."),
  );
  let at = 0;
  if (found.length) queueMicrotask(() => infinite(grid, () => found.slice(at, (at += 12)).map(card)));
  return asked.course || "Recipes";
}

// ---- one recipe ----

function recipePage(world, main) {
  const recipe = world.byId.get(query().id);
  if (!recipe) {
    add(main, h("h1", {}, "This recipe is not here"), h("a", { href: "/recipes/" }, "All recipes"));
    return "Not found";
  }
  let servings = recipe.servings;
  const list = h("ul", { class: "ingredients" }),
    shown = h("b", { id: "servings" });
  const draw = () => {
    shown.textContent = String(servings);
    fill(
      list,
      recipe.ingredients.map((one) => {
        const { amount, name } = measure(one, servings);
        return h("li", {}, h("b", {}, amount), h("span", {}, name));
      }),
    );
  };
  const turn = (by) => {
    servings = Math.max(1, Math.min(MOST_SERVINGS, servings + by));
    draw();
  };
  draw();
  add(
    main,
    h(
      "nav",
      { class: "crumbs" },
      h("a", { href: "/recipes/" }, "Recipes"),
      " / ",
      h("a", { href: href("/recipes/", { course: recipe.course }) }, recipe.course),
    ),
    h(
      "div",
      { class: "recipe" },
      plate(recipe, true),
      h(
        "div",
        { class: "about" },
        h("h1", {}, recipe.title),
        h(
          "p",
          { class: "row" },
          stars(recipe.rating, 16),
          h("b", {}, recipe.rating.toFixed(1)),
          h("span", { class: "soft" }, count(recipe.ratings.length, "rating")),
        ),
        h("p", { class: "soft" }, `By ${recipe.author}, ${dates.long(recipe.published)}`),
        h(
          "dl",
          { class: "times" },
          [
            ["Prep", hours(recipe.prep)],
            ["Cook", recipe.cook ? hours(recipe.cook) : "None"],
            ["Total", hours(recipe.total)],
            ["Level", recipe.level],
          ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
        ),
        h(
          "p",
          { class: "diets" },
          h("i", {}, recipe.cuisine),
          recipe.diets.map((diet) => h("i", {}, diet)),
        ),
        h(
          "div",
          { class: "row wrap" },
          h(
            "button",
            { class: "primary", id: "save", onclick: () => saveDialog(recipe) },
            icon("heart", 17),
            "Save",
          ),
          h(
            "button",
            { id: "plan-it", onclick: () => planDialog(world, recipe) },
            icon("calendar", 17),
            "Add to meal plan",
          ),
          h("button", { id: "cook", onclick: () => cookMode(recipe) }, icon("flame", 17), "Cook mode"),
        ),
      ),
    ),
    h(
      "div",
      { class: "method" },
      h(
        "aside",
        {},
        h("div", { class: "row" }, h("h2", {}, "Ingredients")),
        h(
          "div",
          { class: "row servings" },
          "Servings",
          h(
            "span",
            { class: "stepper" },
            h("button", { "aria-label": "Fewer servings", onclick: () => turn(-1) }, icon("minus", 15)),
            shown,
            h("button", { "aria-label": "More servings", onclick: () => turn(1) }, icon("plus", 15)),
          ),
        ),
        list,
        h(
          "button",
          {
            id: "shop",
            onclick: () => {
              apply("list.add", { id: recipe.id, servings });
              toast(`${count(recipe.ingredients.length, "ingredient")} added to your shopping list.`);
            },
          },
          icon("cart", 17),
          "Add to shopping list",
        ),
      ),
      h(
        "div",
        {},
        tabs([
          {
            id: "steps",
            title: "Method",
            panel: () =>
              h(
                "ol",
                { class: "steps" },
                recipe.steps.map((step) => h("li", {}, step)),
              ),
          },
          {
            id: "nutrition",
            title: "Nutrition",
            panel: () =>
              h(
                "div",
                {},
                h("p", { class: "soft" }, "For one serving"),
                h(
                  "table",
                  { class: "nutrition" },
                  Object.entries(recipe.nutrition).map(([name, value]) =>
                    h(
                      "tr",
                      {},
                      h("td", {}, name),
                      h("td", { class: "number" }, name === "Calories" ? `${value} kcal` : `${value} g`),
                    ),
                  ),
                ),
              ),
          },
          { id: "reviews", title: `Reviews (${recipe.ratings.length})`, panel: () => reviewPanel(recipe) },
        ]),
      ),
    ),
  );
  return recipe.title;
}

function saveDialog(recipe) {
  const form = h("form", { onsubmit: (event) => event.preventDefault() });
  const name = field({ label: "Or a new collection", name: "fresh", required: false });
  add(
    form,
    h(
      "div",
      { class: "field" },
      h("span", {}, "Collections"),
      state().collections.map((one) =>
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", value: one.name, checked: one.recipes.includes(recipe.id) }),
          one.name,
          h("small", { class: "soft" }, `(${one.recipes.length})`),
        ),
      ),
    ),
    name,
  );
  modal({
    title: "Save to a collection",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Save",
        primary: true,
        act: () => {
          const ticked = [...form.querySelectorAll('input[type="checkbox"]')]
            .filter(({ checked }) => checked)
            .map(({ value }) => value);
          const fresh = tidy($("input[name=fresh]", form).value);
          apply("collections.save", { id: recipe.id, ticked, fresh });
          toast("Your collections are up to date.");
        },
      },
    ],
  });
}

function planDialog(world, recipe) {
  const given = { day: "" };
  const form = h(
    "form",
    { class: "tall", onsubmit: (event) => event.preventDefault() },
    datePicker({
      label: "Day",
      name: "day",
      ...planDays(world),
      format: dates.long,
      onpick: (day) => {
        given.day = day;
      },
    }),
    h(
      "div",
      { class: "field" },
      h("span", {}, "Meal"),
      h(
        "div",
        { class: "row" },
        MEALS.map((meal) =>
          h("label", { class: "check" }, h("input", { type: "radio", name: "meal", value: meal }), meal),
        ),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: "Add to meal plan",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Add",
        primary: true,
        act: () => {
          const { day, meal } = planRules(world);
          const problem = day(given.day);
          $(".date-field .error", form).textContent = problem;
          const values = validate(form, { meal });
          if (!values || problem) return false;
          apply("plan.add", { id: recipe.id, day: given.day, meal: values.meal });
          toast(`${recipe.title} is planned for ${dates.brief(given.day)}.`);
        },
      },
    ],
  });
}

/** One step at a time, in large letters. */
function cookMode(recipe) {
  let at = 0;
  const text = h("p", { class: "big-step" }),
    where = h("p", { class: "soft" });
  const [back, on] = [
    h("button", { onclick: () => turn(-1) }, "Back"),
    h("button", { class: "primary", onclick: () => turn(1) }, "Next step"),
  ];
  const turn = (by) => {
    at = Math.max(0, Math.min(recipe.steps.length - 1, at + by));
    draw();
  };
  const draw = () => {
    text.textContent = recipe.steps[at];
    where.textContent = `Step ${at + 1} of ${recipe.steps.length}`;
    back.disabled = at === 0;
    on.disabled = at === recipe.steps.length - 1;
  };
  draw();
  modal({
    title: recipe.title,
    wide: true,
    body: h("div", { class: "cook" }, where, text, h("div", { class: "row" }, back, on)),
  });
}

function reviewPanel(recipe) {
  const frame = h("div", { class: "reviews" });
  let given = 0,
    sort = "recent";
  const draw = () => {
    const mine = state().reviews.filter((one) => one.recipe === recipe.id);
    const others = reviewsOf(recipe).sort(
      sort === "helpful" ? (a, b) => b.helpful - a.helpful : (a, b) => a.age - b.age,
    );
    const choice = h(
      "div",
      { class: "choice", role: "radiogroup", "aria-label": "Your rating" },
      [1, 2, 3, 4, 5].map((rating) =>
        h(
          "button",
          {
            type: "button",
            class: rating <= given ? "on" : "",
            "aria-label": `${rating} star${rating > 1 ? "s" : ""}`,
            onclick: (event) => {
              given = rating;
              [...event.currentTarget.parentNode.children].forEach((one, index) =>
                one.classList.toggle("on", index < rating),
              );
            },
          },
          "★",
        ),
      ),
    );
    const form = h(
      "form",
      {
        class: "write",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, reviewRules);
          const problem = ratingProblem(given);
          if (problem) {
            toast(problem, "error");
            return;
          }
          if (!values) return;
          apply("review.post", { id: recipe.id, rating: given, ...values });
          given = 0;
          draw();
        },
      },
      h("h3", {}, "Write a review"),
      choice,
      field({ label: "Headline", name: "headline" }),
      field({ label: "Your review", name: "text", type: "textarea" }),
      h("button", { class: "primary", id: "send-review" }, "Post review"),
    );
    fill(
      frame,
      h(
        "div",
        { class: "row" },
        h("b", {}, count(recipe.ratings.length + mine.length, "review")),
        h(
          "div",
          { class: "end" },
          dropdown({
            label: "Sort",
            id: "review-sort",
            value: sort,
            options: [
              { value: "recent", text: "Most recent" },
              { value: "helpful", text: "Most helpful" },
            ],
            onchange: (value) => {
              sort = value;
              draw();
            },
          }),
        ),
      ),
      mine.map((one) =>
        h(
          "article",
          { class: "review mine" },
          stars(one.rating, 14),
          h("h4", {}, one.headline),
          h("p", {}, one.text),
          h("small", { class: "soft" }, "You, just now"),
        ),
      ),
      others.map((one) =>
        h(
          "article",
          { class: "review" },
          h("p", { class: "row" }, stars(one.rating, 14), h("h4", {}, one.headline)),
          h(
            "small",
            { class: "soft" },
            `${one.author}, ${one.age} days ago · ${count(one.helpful, "cook")} found this helpful`,
          ),
        ),
      ),
      form,
    );
  };
  draw();
  return frame;
}

// ---- what the cook keeps ----

function collectionsPage(world, main) {
  const draw = () =>
    fill(
      main,
      h("h1", {}, "Your collections"),
      state().collections.map((one) =>
        h(
          "section",
          { class: "collection" },
          h(
            "div",
            { class: "row" },
            h("h2", {}, one.name),
            h("span", { class: "soft" }, count(one.recipes.length, "recipe")),
            one.name === FAVOURITES
              ? null
              : h(
                  "button",
                  {
                    class: "end",
                    onclick: () => apply("collections.delete", { name: one.name }),
                  },
                  "Delete collection",
                ),
          ),
          one.recipes.length
            ? one.recipes.map((id) => {
                const recipe = world.byId.get(id);
                return h(
                  "div",
                  { class: "saved row" },
                  h("div", { class: "mini" }, plate(recipe)),
                  h("a", { href: link(recipe) }, recipe.title),
                  h("span", { class: "soft" }, hours(recipe.total)),
                  h(
                    "button",
                    {
                      class: "end",
                      onclick: () => apply("collections.take out", { name: one.name, id }),
                    },
                    "Remove",
                  ),
                );
              })
            : h("p", { class: "soft" }, "Empty so far."),
        ),
      ),
    );
  onChange(draw);
  draw();
  return "Collections";
}

function planPage(world, main) {
  let from = world.today;
  const draw = () => {
    const days = Array.from({ length: 7 }, (_, index) => dates.plus(from, index));
    fill(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Meal plan"),
        h(
          "div",
          { class: "row end" },
          h(
            "button",
            {
              "aria-label": "Earlier week",
              disabled: from <= world.today,
              onclick: () => {
                from = dates.plus(from, -7);
                draw();
              },
            },
            icon("back", 16),
          ),
          h("b", {}, `${dates.short(days[0])} to ${dates.short(days[6])}`),
          h(
            "button",
            {
              "aria-label": "Later week",
              onclick: () => {
                from = dates.plus(from, 7);
                draw();
              },
            },
            icon("next", 16),
          ),
        ),
      ),
      h(
        "table",
        { class: "week" },
        h(
          "tr",
          {},
          h("th", {}),
          days.map((day) => h("th", {}, dates.brief(day))),
        ),
        MEALS.map((meal) =>
          h(
            "tr",
            {},
            h("th", {}, meal),
            days.map((day) =>
              h(
                "td",
                { "data-day": day, "data-meal": meal },
                state()
                  .plan.filter((one) => one.day === day && one.meal === meal)
                  .map((one) =>
                    h(
                      "div",
                      { class: "dish" },
                      h(
                        "a",
                        { href: href("/recipe/", { id: one.recipe }) },
                        world.byId.get(one.recipe).title,
                      ),
                      h(
                        "button",
                        {
                          class: "plain",
                          "aria-label": `Remove ${world.byId.get(one.recipe).title}`,
                          onclick: () => apply("plan.remove", { id: one.recipe, day, meal }),
                        },
                        icon("close", 14),
                      ),
                    ),
                  ),
              ),
            ),
          ),
        ),
      ),
    );
  };
  onChange(draw);
  draw();
  return "Meal plan";
}

function listPage(world, main) {
  const draw = () => {
    const { list } = state();
    const keys = [...new Set(list.map(({ key }) => key))].sort((a, b) =>
      food(a).name < food(b).name ? -1 : 1,
    );
    const each = (key) => list.filter((one) => one.key === key);
    const amount = (key) => {
      const { unit } = food(key);
      const sum = each(key).reduce(
        (sum, one) =>
          sum + world.byId.get(one.recipe).ingredients.find((other) => other.key === key).each * one.servings,
        0,
      );
      return `${unit === "g" || unit === "ml" ? Math.round(sum) : Math.round(sum * 4) / 4}${unit ? ` ${unit}` : ""}`;
    };
    fill(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Shopping list"),
        h(
          "span",
          { class: "soft" },
          list.length
            ? `for ${[...new Set(list.map(({ recipe }) => world.byId.get(recipe).title))].join(", ")}`
            : "",
        ),
        list.length
          ? h(
              "button",
              {
                class: "end",
                onclick: () => apply("list.clear"),
              },
              "Clear list",
            )
          : null,
      ),
      list.length
        ? h(
            "ul",
            { class: "shopping" },
            keys.map((key) => {
              const done = each(key).every((one) => one.done);
              return h(
                "li",
                { class: done ? "done" : "" },
                h(
                  "label",
                  { class: "check" },
                  h("input", {
                    type: "checkbox",
                    checked: done,
                    onchange: (event) => apply("list.mark", { key, done: event.target.checked }),
                  }),
                  h("span", {}, capital(food(key).name)),
                ),
                h("b", { class: "end" }, amount(key)),
                h(
                  "button",
                  {
                    class: "plain",
                    "aria-label": `Remove ${food(key).name}`,
                    onclick: () => apply("list.remove", { key }),
                  },
                  icon("trash", 17),
                ),
              );
            }),
          )
        : h("p", { class: "notice" }, "Nothing to buy. Add the ingredients of a recipe from its page."),
    );
  };
  onChange(draw);
  draw();
  return "Shopping list";
}
