// Small parts that several pages of the academy use.

import { grouped, h, stars } from "/kit/dom.js";
import { href } from "/kit/site.js";
import { cover } from "/pictures.js";

/** The address of a course. */
export const link = (course) => href("/course/", { id: course.id });
export const price = (course) => (course.price ? `$${course.price}` : "Free");

/** A course in a list. */
export function card(course) {
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
