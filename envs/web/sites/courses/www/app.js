// The academy's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, h, icon, tidy } from "/kit/dom.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import { autocomplete, cookieBanner, dropdown, pagination } from "/kit/ui.js";
import { coursePage } from "/course.js";
import { learnPage, minePage } from "/learn.js";
import { transitions } from "/transitions.js";
import { ACADEMY, LANGUAGES, LEVELS, SUBJECTS, freshState, makeWorld, search } from "/world.js";
import { card } from "/parts.js";
import { cover } from "/pictures.js";

const PAGES = {
  "": homePage,
  courses: listPage,
  course: coursePage,
  learn: learnPage,
  mine: minePage,
  wishes: wishesPage,
};
const PER_PAGE = 12;

site({
  name: "courses",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "wishes"],
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(world),
      main,
      h(
        "footer",
        { class: "bottom" },
        h("b", {}, ACADEMY),
        h(
          "p",
          {},
          "Courses from eight schools. Study at your own pace; certificates are issued by the school.",
        ),
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? ACADEMY} | ${ACADEMY}`;
    cookieBanner({
      name: ACADEMY,
      text: "Cookies remember where you stopped in a lesson. Measuring is optional.",
    });
  },
});

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: query().q ?? "",
    placeholder: "What do you want to learn?",
    "aria-label": "Search courses",
  });
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href("/courses/", { q: tidy(input.value) }));
      },
    },
    h("button", { "aria-label": "Search" }, icon("search", 18)),
  );
  form.prepend(input);
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : world.courses
          .filter(({ title }) => title.toLowerCase().includes(wanted))
          .slice(0, 6)
          .map((course) => ({
            text: course.title,
            detail: course.level,
            act: () => visit(href("/course/", { id: course.id })),
          }));
  });
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "bar" },
      h("a", { class: "logo", href: "/" }, icon("book", 26), ACADEMY),
      h("a", { href: "/courses/", id: "all" }, "Explore"),
      form,
      h(
        "nav",
        {},
        h("a", { href: "/wishes/", id: "wishes" }, icon("heart", 18), "Wish list"),
        h("a", { href: "/mine/", id: "mine" }, icon("user", 18), "My learning"),
      ),
    ),
  );
}

function homePage(world, main) {
  add(
    main,
    h(
      "section",
      { class: "hero" },
      h(
        "div",
        {},
        h("h1", {}, "Learn something that stays"),
        h("p", {}, `${count(world.courses.length, "course")} from people who do it for a living.`),
        h("a", { class: "button", href: "/courses/" }, "Explore all courses"),
      ),
      cover(world.courses[0]),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Subjects"),
      h(
        "div",
        { class: "subjects" },
        SUBJECTS.map((subject) =>
          h(
            "a",
            { href: href("/courses/", { subject: subject.name }), style: { "--hue": subject.hue } },
            h("b", {}, subject.name),
            h("small", {}, subject.topics.slice(0, 3).join(", ")),
          ),
        ),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Most learners"),
      h("div", { class: "grid" }, search(world, {}).slice(0, 4).map(card)),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Free courses"),
      h("div", { class: "grid" }, search(world, { free: true, sort: "rating" }).slice(0, 4).map(card)),
    ),
  );
  return "Learn online";
}

function listPage(world, main) {
  const asked = query(),
    list = (text) => (text ? text.split("|") : []);
  const filters = {
    ...asked,
    levels: list(asked.levels),
    languages: list(asked.languages),
    free: asked.free === "1",
    certificate: asked.certificate === "1",
    rating: Number(asked.rating) || 0,
    hours: Number(asked.hours) || 0,
  };
  const found = search(world, filters),
    pages = Math.ceil(found.length / PER_PAGE),
    page = Math.min(Math.max(1, Number(asked.page) || 1), Math.max(1, pages));
  const go = (changes) => visit(href("/courses/", { ...asked, page: "", ...changes }));
  const ticks = (title, key, values, options) =>
    h(
      "fieldset",
      {},
      h("legend", {}, title),
      options.map((one) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: values.includes(one),
            onchange: () =>
              go({
                [key]: (values.includes(one)
                  ? values.filter((other) => other !== one)
                  : [...values, one]
                ).join("|"),
              }),
          }),
          one,
        ),
      ),
    );
  const flag = (text, key, on) =>
    h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", checked: on, onchange: () => go({ [key]: on ? "" : "1" }) }),
      text,
    );
  add(
    main,
    h(
      "div",
      { class: "row" },
      h(
        "div",
        {},
        h("h1", {}, asked.q ? `Courses for “${asked.q}”` : asked.subject || "All courses"),
        h("p", { class: "soft", id: "found" }, count(found.length, "course")),
      ),
      h(
        "div",
        { class: "end row" },
        dropdown({
          label: "Subject",
          id: "subject",
          value: asked.subject ?? "",
          options: [{ value: "", text: "All" }, ...SUBJECTS.map(({ name }) => ({ value: name, text: name }))],
          onchange: (subject) => go({ subject }),
        }),
        dropdown({
          label: "Sort",
          id: "sort",
          value: asked.sort ?? "popular",
          options: [
            ["popular", "Most learners"],
            ["rating", "Highest rated"],
            ["short", "Shortest"],
            ["cheap", "Lowest price"],
            ["newest", "Newest"],
          ].map(([value, text]) => ({ value, text })),
          onchange: (sort) => go({ sort }),
        }),
      ),
    ),
    h(
      "div",
      { class: "results" },
      h(
        "aside",
        { class: "filters" },
        ticks("Level", "levels", filters.levels, LEVELS),
        ticks("Language", "languages", filters.languages, LANGUAGES),
        h(
          "fieldset",
          {},
          h("legend", {}, "Rating"),
          [4.5, 4, 3.5].map((rating) =>
            h(
              "label",
              { class: "check" },
              h("input", {
                type: "radio",
                name: "rating",
                checked: filters.rating === rating,
                onchange: () => go({ rating }),
              }),
              `${rating} and up`,
            ),
          ),
        ),
        h(
          "fieldset",
          {},
          h("legend", {}, "Length"),
          [10, 20, 40].map((hours) =>
            h(
              "label",
              { class: "check" },
              h("input", {
                type: "radio",
                name: "hours",
                checked: filters.hours === hours,
                onchange: () => go({ hours }),
              }),
              `Up to ${hours} hours`,
            ),
          ),
        ),
        h(
          "fieldset",
          {},
          h("legend", {}, "Terms"),
          flag("Free", "free", filters.free),
          flag("With certificate", "certificate", filters.certificate),
        ),
        h("a", { href: "/courses/" }, "Clear filters"),
      ),
      h(
        "div",
        {},
        found.length
          ? h("div", { class: "grid three" }, found.slice((page - 1) * PER_PAGE, page * PER_PAGE).map(card))
          : h("p", { class: "notice" }, "No course fits."),
        pagination({ page, pages, address: (to) => href("/courses/", { ...asked, page: to }) }),
      ),
    ),
  );
  return "Courses";
}

function wishesPage(world, main) {
  const draw = () => {
    const list = state().wishes.map((id) => world.byId.get(id));
    fill(
      main,
      h("h1", {}, "Your wish list"),
      list.length
        ? h(
            "div",
            { class: "grid" },
            list.map((course) => {
              const node = card(course);
              node.append(
                h(
                  "button",
                  {
                    class: "remove",
                    onclick: () => apply("wishes.remove", { id: course.id }),
                  },
                  "Remove",
                ),
              );
              return node;
            }),
          )
        : h("p", { class: "notice" }, "Nothing here yet."),
    );
  };
  onChange(draw);
  draw();
  return "Wish list";
}
