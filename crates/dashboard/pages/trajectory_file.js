// One trajectory in a file: shows one step at a time, with thumbnails and keys. The texts are in the page already; this
// script reads none of them.

const steps = [...document.querySelectorAll("article.step")];
const strip = document.getElementById("strip");

const buttons = steps.map((step, index) => {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-label", step.getAttribute("aria-label"));
  const picture = step.querySelector("img");
  if (picture) {
    const thumbnail = document.createElement("img");
    thumbnail.src = picture.src;
    thumbnail.alt = "";
    button.append(thumbnail);
  }
  const number = document.createElement("span");
  number.textContent = step.dataset.number;
  button.append(number);
  button.addEventListener("click", () => show(index));
  strip.append(button);
  return button;
});

let current = -1;

function show(index) {
  const next = Math.min(Math.max(index, 0), steps.length - 1);
  if (next === current) return;
  current = next;
  steps.forEach((step, at) => {
    step.hidden = at !== current;
    if (at === current) buttons[at].setAttribute("aria-current", "step");
    else buttons[at].removeAttribute("aria-current");
  });
  buttons[current].scrollIntoView({ block: "nearest", inline: "center" });
  history.replaceState(null, "", `#${steps[current].id}`);
}

const MOVES = {
  ArrowLeft: () => current - 1,
  ArrowRight: () => current + 1,
  Home: () => 0,
  End: () => steps.length - 1,
};

document.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(move());
});

// On paper all steps follow one another.
window.addEventListener("beforeprint", () => steps.forEach((step) => (step.hidden = false)));
window.addEventListener("afterprint", () => steps.forEach((step, at) => (step.hidden = at !== current)));

if (steps.length > 0) {
  const named = steps.findIndex((step) => `#${step.id}` === location.hash);
  show(Math.max(named, 0));
}
