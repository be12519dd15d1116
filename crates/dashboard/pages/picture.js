// Recorded pictures. One that is not stored, or cannot be read, leaves a note where it would be.

import { el } from "./dom.js";

const NOT_STORED = "No picture of it is stored.";

/** The picture with these attributes of an `img`; `note` is what takes its place. */
export function recorded(props, note = NOT_STORED) {
  const missing = () =>
    picture.replaceWith(el("span", { class: `no-picture ${props.class ?? ""}`, title: NOT_STORED }, note));
  const picture = el("img", { ...props, on: { error: missing } });
  return picture;
}
