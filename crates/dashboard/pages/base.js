// Which of several runs these pages show: a dashboard over a folder of runs serves each below `/run/NAME`.

/** The part of an address that names the run; empty where the dashboard shows one run, and on the pages over all runs. */
export function base(path = location.pathname) {
  return /^\/run\/[^/?#]+/.exec(path)?.[0] ?? "";
}

/** Whether this page is about all runs of a folder. */
export function isOfAllRuns() {
  return ["/runs", "/compare"].includes(location.pathname);
}

/** The address of a path of this run: `/job` becomes `/run/NAME/job`. */
export function within(path) {
  return /^\/(?!assets\/|run\/|runs\b|compare\b|api\/runs\b)/.test(path) ? base() + path : path;
}

/** The path without the part that names the run. */
export function pathWithin(path = location.pathname) {
  return path.slice(base(path).length) || "/";
}
