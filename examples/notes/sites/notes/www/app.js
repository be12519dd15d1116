// What the visitor did, and which task this is: in the browser's storage, which goes with the trajectory.
const stored = (name) => JSON.parse(localStorage.getItem(name) ?? "null");
const store = (name, value) => localStorage.setItem(name, JSON.stringify(value));

const FRUIT = ["apples", "bread", "cheese", "dates", "eggs", "figs", "grapes", "honey"];

/** The note to add follows from seed and split alone, so that the same seed is the same task. */
function wanted({ seed, split }) {
  let hash = 0;
  for (const letter of `${split} ${seed}`) hash = (Math.imul(hash, 31) + letter.codePointAt(0)) >>> 0;
  return `Buy ${2 + (hash % 7)} ${FRUIT[(hash >>> 8) % FRUIT.length]}`;
}

function show() {
  const lines = (stored("notes") ?? []).map((note) => {
    const line = document.createElement("li");
    line.textContent = note;
    return line;
  });
  document.querySelector("ul").replaceChildren(...lines);
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.querySelector("input");
  store("notes", [...(stored("notes") ?? []), field.value]);
  field.value = "";
  show();
});

window.furrow = {
  // Sets the task up and returns its goal.
  start(template, seed, split) {
    store("task", { template, seed, split });
    return `Add the note "${wanted({ seed, split })}" and no other, then answer "done".`;
  },
  // What a scorer reads: after every action, and at the end.
  probe() {
    const notes = stored("notes") ?? [];
    return { done: false, correct: notes.length === 1 && notes[0] === wanted(stored("task")) };
  },
};

show();
