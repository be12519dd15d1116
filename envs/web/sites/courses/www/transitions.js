// What a learner can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it. The
// rules of the forms are here, too: the pages show what a rule finds wrong, a transition throws it.

import { checked, filled, insist, refuse } from "/kit/rules.js";
import { quizOf } from "/world.js";

/** How a course can be studied: [kind, what it includes]. */
export const kindsOf = (course) => [
  ["Audit", "All lessons, no certificate"],
  ...(course.certificate ? [["Certificate", "Lessons, graded work and a certificate"]] : []),
];

// ---- rules of the forms: (value) => what is wrong with it, or "" ----

export const enrolRules = {
  kind: (value) => (value ? "" : "Choose one"),
  start: (value) => (value ? "" : "Choose a day"),
  name: filled("your name"),
};

export const noteRules = { note: (value) => (value.length < 3 ? "Write something first" : "") };

/** What is wrong with the answers to a quiz, one of each question; "" if nothing. */
export const quizProblem = (given) => (given.some((value) => !value) ? "Answer every question first." : "");

// ---- what a transition insists on ----

function courseOf(world, id) {
  insist(world.byId.has(id), "no such course");
  return world.byId.get(id);
}

/** The enrolment in a course. */
function ownOf(now, id) {
  const own = now.enrolled.find((one) => one.id === id);
  insist(own, "not enrolled in this course");
  return own;
}

function moduleOf(world, id, week) {
  const module = courseOf(world, id).modules.find((one) => one.week === week);
  insist(module, "no such week");
  return module;
}

/** A lesson by its key, such as "2.0": the first one of the second week. */
function lessonOf(world, id, key) {
  const [week, at] = String(key).split(".").map(Number),
    lesson = moduleOf(world, id, week).lessons[at];
  insist(lesson && key === `${week}.${at}`, "no such lesson");
  return lesson;
}

export const transitions = {
  "wishes.add"(now, { id }, world) {
    courseOf(world, id);
    insist(!now.wishes.includes(id), "this course is on the wish list");
    now.wishes.push(id);
  },

  "wishes.remove"(now, { id }) {
    insist(now.wishes.includes(id), "this course is not on the wish list");
    now.wishes = now.wishes.filter((one) => one !== id);
  },

  "courses.enrol"(now, { id, kind, start, name }, world) {
    const course = courseOf(world, id),
      isOwn = now.enrolled.some((one) => one.id === id),
      isKind = kindsOf(course).some(([one]) => one === kind);
    insist(!isOwn, "enrolled in this course already");
    checked({ kind, start, name }, enrolRules);
    insist(isKind, "this course is not studied so");
    insist(course.starts.includes(start), "this course does not begin on that day");
    now.enrolled.push({ id, kind, start, name, done: [], quizzes: {} });
  },

  "courses.leave"(now, { id }) {
    const own = ownOf(now, id);
    now.enrolled = now.enrolled.filter((one) => one !== own);
  },

  "lessons.complete"(now, { id, key }, world) {
    const own = ownOf(now, id),
      lesson = lessonOf(world, id, key);
    insist(lesson.kind !== "Quiz", "a quiz is answered, not marked");
    insist(!own.done.includes(key), "this lesson is completed");
    own.done.push(key);
  },

  /** `given` are the numbers that were ticked, in the order of the questions. The best result is kept. */
  "quizzes.submit"(now, { id, week, given }, world) {
    const own = ownOf(now, id),
      questions = quizOf(moduleOf(world, id, week));
    insist(Array.isArray(given) && given.length === questions.length, "one answer to each question");
    refuse(quizProblem(given));
    const isOffered = questions.every(({ choices }, at) => choices.includes(given[at]));
    insist(isOffered, "no such answer");
    const right = questions.filter((question, at) => question.right === given[at]).length;
    own.quizzes[week] = Math.max(right, own.quizzes[week] ?? 0);
    own.tries = (own.tries ?? 0) + 1;
  },

  "notes.add"(now, { id, key, text }, world) {
    ownOf(now, id);
    const lesson = lessonOf(world, id, key);
    checked({ note: text }, noteRules);
    now.notes.push({ id, key, lesson: lesson.title, text });
  },
};
