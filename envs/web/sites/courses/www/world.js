// The academy's content, drawn from the seed: 240 courses with weeks, lessons, key figures and quizzes, reviews and dates to begin.

import * as dates from "/kit/dates.js";
import { capital, slug } from "/kit/dom.js";
import { people, person } from "/kit/words.js";

export const ACADEMY = "Lumenary";
const PER_SUBJECT = 30;

export const SUBJECTS = [
  {
    name: "Data Science",
    topics: ["data visualisation", "statistics", "forecasting", "databases", "survey design", "text mining"],
    hue: 212,
  },
  {
    name: "Programming",
    topics: ["web services", "functional programming", "testing", "mobile apps", "algorithms", "compilers"],
    hue: 262,
  },
  {
    name: "Business",
    topics: ["negotiation", "accounting", "supply chains", "pricing", "project planning", "leadership"],
    hue: 28,
  },
  {
    name: "Design",
    topics: ["typography", "product design", "colour", "user research", "motion graphics", "packaging"],
    hue: 336,
  },
  {
    name: "Health",
    topics: ["nutrition", "first aid", "sleep", "public health", "physiotherapy", "mindfulness"],
    hue: 158,
  },
  {
    name: "Languages",
    topics: ["business English", "Italian", "Japanese", "sign language", "translation", "phonetics"],
    hue: 46,
  },
  {
    name: "Humanities",
    topics: ["ancient history", "ethics", "music theory", "film studies", "archaeology", "poetry"],
    hue: 8,
  },
  {
    name: "Environment",
    topics: ["climate models", "beekeeping", "urban gardens", "water management", "solar energy", "forests"],
    hue: 104,
  },
];
export const LEVELS = ["Beginner", "Intermediate", "Advanced"];
export const LANGUAGES = ["English", "Spanish", "French", "German"];
const SCHOOLS = [
  "Northgate University",
  "Institute of Kells",
  "Aldermoor College",
  "Maritime Academy of Porto Vell",
  "Tarnfield Polytechnic",
  "School of Open Arts",
  "Ridgeway University",
  "Lakeside Conservatory",
];
const FORMS = [
  (topic) => `Introduction to ${topic}`,
  (topic) => `${capital(topic)} in practice`,
  (topic) => `Advanced ${topic}`,
  (topic) => `${capital(topic)} for beginners`,
  (topic) => `The essentials of ${topic}`,
  (topic) => `${capital(topic)}: from zero to project`,
  (topic) => `Masterclass ${topic}`,
  (topic) => `${capital(topic)} at work`,
];
const STAGES = [
  "Foundations",
  "First steps",
  "Tools and materials",
  "Methods",
  "Working with others",
  "Common mistakes",
  "Going further",
  "Final project",
];
const TITLES = [
  "Why it matters",
  "A short history",
  "Three examples",
  "Setting up",
  "Step by step",
  "A case from practice",
  "What can go wrong",
  "Interview with an expert",
  "Check your understanding",
  "Exercise",
  "Comparing approaches",
  "Summary",
];
const TERMS = [
  "the recommended sample",
  "the number of stages",
  "the usual budget in dollars",
  "the year of the first standard",
  "the share of failures in percent",
  "the hours of preparation",
  "the size of a good team",
  "the distance in metres",
];
const PRAISE = [
  "Clear and well paced.",
  "The exercises made all the difference.",
  "I use it at work every day.",
  "A little long, but worth it.",
  "The teacher answers every question.",
  "Good overview, few details.",
  "I expected more examples.",
  "Too fast for me.",
  "The best course I have taken.",
];

/** The whole academy. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-08", draw.below(270));
  const teachers = people(draw.fork("teachers"), 60);
  const titles = new Set();
  const courses = SUBJECTS.flatMap((subject) =>
    Array.from({ length: PER_SUBJECT }, (_, index) =>
      makeCourse(subject, draw.fork(`${subject.name}/${index}`), { teachers, titles, today }),
    ),
  );
  return {
    today,
    courses: draw.fork("order").shuffled(courses),
    byId: new Map(courses.map((course) => [course.id, course])),
  };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({ wishes: [], enrolled: [], notes: [], goal: null });

function makeCourse(subject, draw, { teachers, titles, today }) {
  let title;
  do title = draw.one(FORMS)(draw.one(subject.topics));
  while (titles.has(title));
  titles.add(title);
  const level = /beginner|Introduction|essentials|zero/.test(title)
    ? "Beginner"
    : /Advanced|Masterclass/.test(title)
      ? "Advanced"
      : draw.one(["Beginner", "Intermediate", "Intermediate"]);
  const weeks = draw.between(3, 7),
    perWeek = draw.between(2, 9);
  const stages = STAGES.slice(0, weeks - 1).concat("Final project");
  const modules = stages.map((name, week) => {
    const figures = draw.some(TERMS, 3).map((term) => ({ term, value: draw.between(12, 960) }));
    const lessons = draw
      .some(
        TITLES.filter((one) => one !== "Check your understanding"),
        draw.between(3, 5),
      )
      .map((lesson, index) => ({
        title: lesson,
        kind: index === 1 ? "Reading" : draw.one(["Video", "Video", "Exercise"]),
        minutes: draw.between(4, 48),
      }));
    lessons.push({ title: "Check your understanding", kind: "Quiz", minutes: draw.between(5, 15) });
    return { name, week: week + 1, figures, lessons, draw: draw.fork(`quiz/${week}`) };
  });
  const ratings = Array.from({ length: draw.between(6, 30) }, () =>
    draw.weighted([
      [5, 6],
      [4, 4],
      [3, 2],
      [2, 0.8],
      [1, 0.4],
    ]),
  );
  const first = dates.plus(today, draw.between(3, 20));
  return {
    id: slug(title),
    title,
    subject: subject.name,
    hue: subject.hue + draw.between(-14, 14),
    level,
    weeks,
    perWeek,
    hours: weeks * perWeek,
    school: draw.one(SCHOOLS),
    teacher: draw.one(teachers),
    language: draw.weighted([
      ["English", 5],
      ["Spanish", 1.4],
      ["French", 1.2],
      ["German", 1.2],
    ]),
    subtitles: draw.some(LANGUAGES, draw.between(1, 3)),
    price: draw.weighted([
      [0, 2],
      [draw.between(2, 14) * 10 + 9, 5],
    ]),
    enrolled: draw.between(210, 184000),
    ratings,
    rating: Math.round((ratings.reduce((sum, one) => sum + one, 0) / ratings.length) * 10) / 10,
    modules,
    starts: [first, dates.plus(first, 14), dates.plus(first, 42)],
    certificate: draw.chance(0.75),
    added: draw.below(800),
    draw,
  };
}

/** Reviews, newest first. */
export function reviewsOf(course) {
  const draw = course.draw.fork("reviews");
  return course.ratings.map((rating, index) => ({
    rating,
    author: person(draw),
    text: draw.one(PRAISE),
    helpful: draw.below(140),
    age: 2 + index * 8 + draw.below(7),
  }));
}

/** A module's quiz: each question asks for a key figure of its reading. */
export function quizOf(module) {
  return module.figures.map(({ term, value }) => {
    const draw = module.draw.fork(term),
      wrong = new Set();
    while (wrong.size < 3) {
      const other = Math.max(1, value + draw.between(-9, 9) * draw.between(1, 6));
      if (other !== value) wrong.add(other);
    }
    return { question: `What is ${term}?`, right: value, choices: draw.shuffled([value, ...wrong]) };
  });
}

/** Courses that fit, in order. */
export function search(
  world,
  {
    q = "",
    subject = "",
    levels = [],
    languages = [],
    free = false,
    certificate = false,
    rating = 0,
    hours = 0,
    sort = "popular",
  },
) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = world.courses.filter((course) => {
    const text = `${course.title} ${course.subject} ${course.teacher} ${course.school}`.toLowerCase();
    return (
      words.every((word) => text.includes(word)) &&
      (!subject || course.subject === subject) &&
      (!levels.length || levels.includes(course.level)) &&
      (!languages.length || languages.includes(course.language)) &&
      (!free || !course.price) &&
      (!certificate || course.certificate) &&
      course.rating >= rating &&
      (!hours || course.hours <= hours)
    );
  });
  const orders = {
    popular: (a, b) => b.enrolled - a.enrolled,
    rating: (a, b) => b.rating - a.rating || b.ratings.length - a.ratings.length,
    short: (a, b) => a.hours - b.hours,
    cheap: (a, b) => a.price - b.price,
    newest: (a, b) => a.added - b.added,
  };
  const exact = (course) => (q && course.title.toLowerCase() === q.toLowerCase() ? 0 : 1);
  return found
    .map((course, at) => ({ course, at }))
    .sort(
      (a, b) =>
        (sort === "popular" ? exact(a.course) - exact(b.course) : 0) ||
        (orders[sort] ?? orders.popular)(a.course, b.course) ||
        a.at - b.at,
    )
    .map(({ course }) => course);
}
