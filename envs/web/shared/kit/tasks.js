// What the tasks of all sites share.

/**
 * Draws until a task comes out that can be asked, each time with numbers of its own: `make(draw)` returns null where nothing fits. A task that is
 * scored by its answer alone is not asked if its goal gives the answer away, be it in quotes or as a number.
 */
export function until(draw, make) {
  for (let at = 0; at < 400; at++) {
    const task = make(draw.fork(at));
    if (task && (task.correct || !isGivenAway(task))) return task;
  }
  throw new Error("no task of this kind in this world");
}

function isGivenAway({ goal, expected }) {
  const quoted = [...goal.matchAll(/"([^"]+)"/g)].map(([, text]) => text.toLowerCase());
  const numbers = (goal.match(/\d+(\.\d+)?/g) ?? []).map(Number);
  return quoted.includes(String(expected).toLowerCase()) || numbers.includes(Number(expected));
}
