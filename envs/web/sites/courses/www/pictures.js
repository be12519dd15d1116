// Covers of courses: geometry in the colours of their subject.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";

/** The cover of a course. */
export function cover(course) {
  const draw = draws(`cover/${course.id}`),
    tone = (light, shift = 0) => `hsl(${course.hue + shift} 55% ${light}%)`;
  const shapes = Array.from({ length: 9 }, () => {
    const x = draw.below(320),
      y = draw.below(180),
      size = draw.between(20, 74),
      colour = tone(draw.between(38, 82), draw.between(-30, 46));
    return draw.one([
      `<circle cx="${x}" cy="${y}" r="${size * 0.6}" fill="${colour}"/>`,
      `<rect x="${x - size / 2}" y="${y - size / 2}" width="${size}" height="${size}" rx="6" fill="${colour}" transform="rotate(${draw.below(90)} ${x} ${y})"/>`,
      `<path d="M${x} ${y - size * 0.6}l${size * 0.6} ${size}h${-size * 1.2}z" fill="${colour}"/>`,
      `<path d="M${x - size} ${y}a${size} ${size} 0 0 1 ${size * 2} 0z" fill="${colour}"/>`,
    ]);
  });
  const node = h("div", { class: "cover", role: "img", "aria-label": course.title });
  node.innerHTML = `<svg viewBox="0 0 320 180" preserveAspectRatio="xMidYMid slice"><rect width="320" height="180" fill="${tone(30)}"/>${shapes.join("")}</svg>`;
  return node;
}
