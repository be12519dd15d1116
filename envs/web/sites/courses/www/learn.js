// Learning: the lessons of a course one is enrolled in, its quizzes and notes, and the list of one's own courses.

import { add, fill, h, icon } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, state } from "/kit/site.js";
import { field, modal, toast, validate } from "/kit/ui.js";
import { noteRules, quizProblem } from "/transitions.js";
import { quizOf } from "/world.js";
import { link } from "/parts.js";
import { cover } from "/pictures.js";

export function learnPage(world, main) {
  const { id, week = "1", lesson = "0" } = query(),
    course = world.byId.get(id),
    own = () => state().enrolled.find((one) => one.id === id);
  if (!course || !own()) {
    add(main, h("h1", {}, "You are not enrolled in this course"), h("a", { href: "/mine/" }, "My learning"));
    return "Not enrolled";
  }
  const module = course.modules[Number(week) - 1] ?? course.modules[0],
    at = Math.min(Number(lesson) || 0, module.lessons.length - 1),
    open = module.lessons[at],
    key = `${module.week}.${at}`;
  const to = (week, lesson) => href("/learn/", { id, week, lesson });
  const frame = h("section", { class: "lesson" }),
    menu = h("nav", { class: "menu" });
  const total = course.modules.reduce((sum, { lessons }) => sum + lessons.length, 0);
  const draw = () => {
    fill(
      menu,
      h("a", { href: link(course) }, h("b", {}, course.title)),
      h("p", { class: "soft" }, `${own().done.length} of ${total} lessons done`),
      course.modules.map((one) =>
        h(
          "details",
          { open: one === module },
          h("summary", {}, `Week ${one.week}: ${one.name}`),
          one.lessons.map((item, index) =>
            h(
              "a",
              { href: to(one.week, index), "aria-current": one === module && index === at ? "page" : null },
              h("span", { class: `dot${own().done.includes(`${one.week}.${index}`) ? " on" : ""}` }),
              item.title,
            ),
          ),
        ),
      ),
    );
    const done = own().done.includes(key);
    const body =
      open.kind === "Quiz"
        ? quiz(module, course, own)
        : open.kind === "Reading"
          ? reading(module)
          : player(open);
    fill(
      frame,
      h("p", { class: "soft" }, `Week ${module.week} · ${open.kind} · ${open.minutes} min`),
      h("h1", {}, open.title),
      body,
      open.kind === "Quiz"
        ? null
        : h(
            "div",
            { class: "row" },
            h(
              "button",
              {
                class: done ? "" : "primary",
                id: "complete",
                disabled: done,
                onclick: () => apply("lessons.complete", { id, key }),
              },
              icon("check", 17),
              done ? "Completed" : "Mark as completed",
            ),
            at + 1 < module.lessons.length
              ? h("a", { class: "button end", id: "next", href: to(module.week, at + 1) }, "Next lesson")
              : null,
          ),
      notes(course, key),
    );
  };
  onChange(draw);
  draw();
  main.className = "learning";
  add(main, menu, frame);
  return open.title;
}

const reading = (module) =>
  h(
    "div",
    { class: "prose" },
    h(
      "p",
      {},
      `This reading sums up what you need for the week “${module.name}”. Keep the key figures in mind: the quiz asks for them.`,
    ),
    h(
      "table",
      { class: "figures" },
      h("caption", {}, "Key figures"),
      module.figures.map(({ term, value }) =>
        h("tr", {}, h("th", {}, term), h("td", { class: "number" }, String(value))),
      ),
    ),
  );

function player(lesson) {
  let on = false;
  const button = h(
    "button",
    {
      "aria-label": "Play",
      onclick: () => {
        on = !on;
        button.textContent = on ? "❚❚" : "▶";
      },
    },
    "▶",
  );
  return h("div", { class: "player" }, button, h("span", {}, `0:00 / ${lesson.minutes}:00`));
}

function quiz(module, course, own) {
  const questions = quizOf(module),
    best = own().quizzes[module.week];
  const result = h(
    "p",
    { id: "result", role: "status" },
    best === undefined ? "" : `Your best result: ${best} of ${questions.length}`,
  );
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const given = questions.map((_, index) => form.elements[`q${index}`].value);
        const problem = quizProblem(given);
        if (problem) return toast(problem, "error");
        const right = given.filter((value, index) => Number(value) === questions[index].right).length;
        apply("quizzes.submit", { id: course.id, week: module.week, given: given.map(Number) });
        toast(`${right} of ${questions.length} right.`);
      },
    },
    questions.map(({ question, choices }, index) =>
      h(
        "fieldset",
        { class: "question" },
        h("legend", {}, `${index + 1}. ${question}`),
        choices.map((value) =>
          h(
            "label",
            { class: "check" },
            h("input", { type: "radio", name: `q${index}`, value: String(value) }),
            String(value),
          ),
        ),
      ),
    ),
    h("button", { class: "primary", id: "submit" }, "Submit answers"),
  );
  return h("div", {}, result, form);
}

function notes(course, key) {
  const own = state().notes.filter((one) => one.id === course.id && one.key === key);
  const form = h(
    "form",
    {
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, noteRules);
        if (values) apply("notes.add", { id: course.id, key, text: values.note });
      },
    },
    field({ label: "Add a note to this lesson", name: "note" }),
    h("button", { id: "add-note" }, "Save note"),
  );
  return h(
    "section",
    { class: "notes" },
    h("h2", {}, "Your notes"),
    own.map(({ text }) => h("p", { class: "note" }, text)),
    form,
  );
}

export function minePage(world, main) {
  const draw = () => {
    const { enrolled } = state();
    fill(
      main,
      h("h1", {}, "My learning"),
      enrolled.length
        ? enrolled.map((own) => {
            const course = world.byId.get(own.id),
              total = course.modules.reduce((sum, { lessons }) => sum + lessons.length, 0);
            return h(
              "article",
              { class: "own" },
              h("div", { class: "mini" }, cover(course)),
              h(
                "div",
                {},
                h("h3", {}, h("a", { href: href("/learn/", { id: course.id, week: 1 }) }, course.title)),
                h(
                  "p",
                  { class: "soft" },
                  `${own.kind} · from ${dates.short(own.start)} · ${own.done.length} of ${total} lessons done`,
                ),
                h(
                  "i",
                  { class: "progress" },
                  h("u", { style: { width: `${(own.done.length / total) * 100}%` } }),
                ),
              ),
              h(
                "button",
                {
                  class: "end leave",
                  onclick: () =>
                    modal({
                      title: "Leave this course?",
                      body: h("p", {}, `Your progress in ${course.title} will be lost.`),
                      actions: [
                        { text: "Stay", act() {} },
                        {
                          text: "Leave course",
                          primary: true,
                          act: () => apply("courses.leave", { id: course.id }),
                        },
                      ],
                    }),
                },
                "Leave",
              ),
            );
          })
        : h("p", { class: "notice" }, "You are not enrolled in any course yet."),
    );
  };
  onChange(draw);
  draw();
  return "My learning";
}
