// The academy's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, stars, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { change, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  dropdown,
  field,
  modal,
  pagination,
  rules,
  tabs,
  toast,
  validate,
} from "/kit/ui.js";
import {
  ACADEMY,
  LANGUAGES,
  LEVELS,
  SUBJECTS,
  freshState,
  makeWorld,
  quizOf,
  reviewsOf,
  search,
} from "/world.js";
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

const link = (course) => href("/course/", { id: course.id });
const price = (course) => (course.price ? `$${course.price}` : "Free");

function card(course) {
  return h(
    "article",
    { class: "card", "data-id": course.id },
    h("a", { href: link(course) }, cover(course)),
    h(
      "div",
      { class: "card-text" },
      h("small", {}, course.school),
      h("h3", {}, h("a", { href: link(course) }, course.title)),
      h(
        "p",
        { class: "row" },
        stars(course.rating, 13),
        h("b", {}, course.rating.toFixed(1)),
        h("span", { class: "soft" }, `${grouped(course.enrolled)} learners`),
      ),
      h(
        "p",
        { class: "soft" },
        `${course.level} · ${course.weeks} weeks · ${course.hours} hours · ${course.language}`,
      ),
      h(
        "p",
        { class: "row" },
        h("b", { class: course.price ? "" : "free" }, price(course)),
        course.certificate ? h("span", { class: "tag" }, "Certificate") : null,
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

// ---- one course ----

function coursePage(world, main) {
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
          onclick: () =>
            change((now) => {
              now.wishes = wished ? now.wishes.filter((id) => id !== course.id) : [...now.wishes, course.id];
            }),
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
  const kinds = [
    ["Audit", "All lessons, no certificate", "Free"],
    ...(course.certificate ? [["Certificate", "Lessons, graded work and a certificate", price(course)]] : []),
  ];
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h(
      "div",
      { class: "field" },
      h("span", {}, "How do you want to study?"),
      kinds.map(([name, text, cost]) =>
        h(
          "label",
          { class: "choice" },
          h("input", { type: "radio", name: "kind", value: name }),
          h("div", {}, h("b", {}, name), h("small", { class: "soft" }, text)),
          h("b", { class: "end" }, cost),
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
          const values = validate(form, {
            kind: (value) => (value ? "" : "Choose one"),
            start: (value) => (value ? "" : "Choose a day"),
            name: rules.filled("your name"),
          });
          if (!values) return false;
          change((now) => {
            now.enrolled.push({ id: course.id, ...values, done: [], quizzes: {} });
          });
          toast("You are enrolled. Welcome!");
        },
      },
    ],
  });
}

// ---- learning ----

function learnPage(world, main) {
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
  const edit = (act) => change((now) => act(now.enrolled.find((one) => one.id === id)));
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
        ? quiz(module, course, own, edit)
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
                onclick: () =>
                  edit((now) => {
                    now.done.push(key);
                  }),
              },
              icon("check", 17),
              done ? "Completed" : "Mark as completed",
            ),
            at + 1 < module.lessons.length
              ? h("a", { class: "button end", id: "next", href: to(module.week, at + 1) }, "Next lesson")
              : null,
          ),
      notes(course, key, open),
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

function quiz(module, course, own, edit) {
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
        if (given.some((value) => !value)) return toast("Answer every question first.", "error");
        const right = given.filter((value, index) => Number(value) === questions[index].right).length;
        edit((now) => {
          now.quizzes[module.week] = Math.max(right, now.quizzes[module.week] ?? 0);
          now.tries = (now.tries ?? 0) + 1;
        });
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

function notes(course, key, lesson) {
  const own = state().notes.filter((one) => one.id === course.id && one.key === key);
  const form = h(
    "form",
    {
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, { note: (value) => (value.length < 3 ? "Write something first" : "") });
        if (values)
          change((now) => {
            now.notes.push({ id: course.id, key, lesson: lesson.title, text: values.note });
          });
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

function minePage(world, main) {
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
                          act: () => {
                            change((now) => {
                              now.enrolled = now.enrolled.filter(({ id }) => id !== course.id);
                            });
                          },
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
                    onclick: () =>
                      change((now) => {
                        now.wishes = now.wishes.filter((id) => id !== course.id);
                      }),
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
