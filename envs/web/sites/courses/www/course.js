// One course: what it teaches, its reviews, and enrolling in it.

import { add, count, fill, grouped, h, icon, stars } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, state } from "/kit/site.js";
import { dropdown, field, modal, tabs, toast, validate } from "/kit/ui.js";
import { enrolRules, kindsOf } from "/transitions.js";
import { reviewsOf } from "/world.js";
import { price } from "/parts.js";
import { cover } from "/pictures.js";

export function coursePage(world, main) {
  const course = world.byId.get(query().id);
  if (!course) {
    add(main, h("h1", {}, "This course is not here"), h("a", { href: "/courses/" }, "All courses"));
    return "Not found";
  }
  const side = h("aside", { class: "enrol" });
  const draw = () => {
    const own = state().enrolled.find(({ id }) => id === course.id),
      wished = state().wishes.includes(course.id);
    fill(
      side,
      cover(course),
      h("b", { class: "price" }, price(course)),
      own
        ? h("p", { class: "notice" }, `You are enrolled: ${own.kind}, from ${dates.short(own.start)}.`)
        : h("p", { class: "soft" }, `Next start: ${dates.long(course.starts[0])}`),
      own
        ? h(
            "a",
            { class: "button primary", id: "learn", href: href("/learn/", { id: course.id, week: 1 }) },
            "Go to the course",
          )
        : h("button", { class: "primary", id: "enrol", onclick: () => enrolDialog(course) }, "Enrol"),
      h(
        "button",
        {
          id: "wish",
          onclick: () => apply(wished ? "wishes.remove" : "wishes.add", { id: course.id }),
        },
        icon("heart", 17),
        wished ? "On your wish list" : "Add to wish list",
      ),
      h(
        "ul",
        { class: "facts" },
        [
          ["clock", `${course.weeks} weeks, ${course.perWeek} hours a week`],
          ["globe", `${course.language}; subtitles: ${course.subtitles.join(", ")}`],
          ["check", course.certificate ? "With certificate" : "Without certificate"],
          ["people", `${grouped(course.enrolled)} learners`],
        ].map(([name, text]) => h("li", {}, icon(name, 17), text)),
      ),
    );
  };
  onChange(draw);
  draw();
  add(
    main,
    h(
      "nav",
      { class: "crumbs" },
      h("a", { href: "/courses/" }, "Courses"),
      " › ",
      h("a", { href: href("/courses/", { subject: course.subject }) }, course.subject),
    ),
    h(
      "div",
      { class: "course" },
      h(
        "div",
        {},
        h("h1", {}, course.title),
        h(
          "p",
          { class: "row" },
          stars(course.rating, 16),
          h("b", {}, course.rating.toFixed(1)),
          h("span", { class: "soft" }, `${count(course.ratings.length, "review")} · ${course.level}`),
        ),
        h("p", {}, "Taught by ", h("b", { id: "teacher" }, course.teacher), `, ${course.school}`),
        tabs([
          {
            id: "syllabus",
            title: "Syllabus",
            panel: () =>
              h(
                "div",
                { class: "syllabus" },
                course.modules.map((module) =>
                  h(
                    "details",
                    {},
                    h(
                      "summary",
                      {},
                      h("b", {}, `Week ${module.week}: ${module.name}`),
                      h("span", { class: "soft" }, ` ${count(module.lessons.length, "lesson")}`),
                    ),
                    h(
                      "table",
                      {},
                      module.lessons.map((lesson) =>
                        h(
                          "tr",
                          {},
                          h("td", {}, lesson.kind),
                          h("td", {}, lesson.title),
                          h("td", { class: "number" }, `${lesson.minutes} min`),
                        ),
                      ),
                    ),
                  ),
                ),
              ),
          },
          {
            id: "about",
            title: "About",
            panel: () =>
              h(
                "div",
                { class: "prose" },
                h(
                  "p",
                  {},
                  `In ${course.weeks} weeks this course leads you from the first ideas to a project of your own. You need about ${course.perWeek} hours a week.`,
                ),
                h(
                  "p",
                  {},
                  `${course.teacher} teaches at ${course.school} and has worked in the field for many years. The course is held in ${course.language}.`,
                ),
                h("h3", {}, "Dates to begin"),
                h(
                  "ul",
                  {},
                  course.starts.map((day) => h("li", {}, dates.long(day))),
                ),
              ),
          },
          { id: "reviews", title: `Reviews (${course.ratings.length})`, panel: () => reviewPanel(course) },
        ]),
      ),
      side,
    ),
  );
  return course.title;
}

function reviewPanel(course) {
  let sort = "recent";
  const frame = h("div", {});
  const draw = () =>
    fill(
      frame,
      h(
        "div",
        { class: "row" },
        h("b", {}, count(course.ratings.length, "review")),
        h(
          "div",
          { class: "end" },
          dropdown({
            label: "Sort",
            id: "review-sort",
            value: sort,
            options: [
              ["recent", "Most recent"],
              ["helpful", "Most helpful"],
              ["low", "Lowest rating"],
            ].map(([value, text]) => ({ value, text })),
            onchange: (value) => {
              sort = value;
              draw();
            },
          }),
        ),
      ),
      reviewsOf(course)
        .sort(
          sort === "helpful"
            ? (a, b) => b.helpful - a.helpful
            : sort === "low"
              ? (a, b) => a.rating - b.rating || a.age - b.age
              : (a, b) => a.age - b.age,
        )
        .map((one) =>
          h(
            "article",
            { class: "review" },
            h(
              "p",
              { class: "row" },
              stars(one.rating, 14),
              h("b", {}, one.author),
              h("span", { class: "soft" }, `${one.age} days ago`),
            ),
            h("p", {}, one.text),
            h("small", { class: "soft" }, `${count(one.helpful, "learner")} found this helpful`),
          ),
        ),
    );
  draw();
  return frame;
}

function enrolDialog(course) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h(
      "div",
      { class: "field" },
      h("span", {}, "How do you want to study?"),
      kindsOf(course).map(([name, text]) =>
        h(
          "label",
          { class: "choice" },
          h("input", { type: "radio", name: "kind", value: name }),
          h("div", {}, h("b", {}, name), h("small", { class: "soft" }, text)),
          h("b", { class: "end" }, name === "Audit" ? "Free" : price(course)),
        ),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
    h(
      "div",
      { class: "field" },
      h("span", {}, "When do you begin?"),
      course.starts.map((day) =>
        h(
          "label",
          { class: "check" },
          h("input", { type: "radio", name: "start", value: day }),
          dates.long(day),
        ),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
    field({ label: "Name for the certificate", name: "name" }),
  );
  modal({
    title: `Enrol in ${course.title}`,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Enrol",
        primary: true,
        act: () => {
          const values = validate(form, enrolRules);
          if (!values) return false;
          const { kind, start, name } = values;
          apply("courses.enrol", { id: course.id, kind, start, name });
          toast("You are enrolled. Welcome!");
        },
      },
    ],
  });
}
