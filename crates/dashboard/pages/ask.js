// Requests to the server, and its messages when something changed.

import { within } from "./base.js";

/** The answer to a GET of our own API, or an error in the server's words. */
export async function ask(path, signal) {
  const response = await fetch(within(path), {
    signal,
    headers: { accept: "application/json" },
    credentials: "same-origin",
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) location.reload();
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

/** Asks the server to do something; throws in its own words when it does not. */
export async function postCommand(path) {
  const response = await fetch(within(path), { method: "POST", credentials: "same-origin" });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

/** Calls `changed` with the newest message of the server, at most once in `rest` milliseconds, and `lost` when the connection is gone. */
export function subscribe(changed, lost, rest = 1000) {
  let source;
  let retryTimer;
  let waiting = null;
  let last = 0;
  const notify = () => {
    const message = waiting;
    waiting = null;
    last = Date.now();
    if (message) changed(message);
  };
  const open = () => {
    source?.close();
    clearTimeout(retryTimer);
    source = new EventSource(within("/api/events"));
    source.onmessage = (event) => {
      const isFirst = waiting === null;
      waiting = JSON.parse(event.data);
      if (isFirst) setTimeout(notify, Math.max(0, last + rest - Date.now()));
    };
    source.onopen = () => lost(false);
    source.onerror = () => {
      lost(true);
      // A browser tries again by itself after a lost connection, and never after an answer of another kind: a proxy's 502.
      clearTimeout(retryTimer);
      if (source.readyState === EventSource.CLOSED) retryTimer = setTimeout(open, 5000);
    };
  };
  open();
  // A hidden tab listens to nothing.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(retryTimer);
    source.close();
    if (!document.hidden) open();
  });
}

/** Runs `draw` one call at a time: all calls that come meanwhile lead to one more run after it. */
export function inTurn(draw) {
  let running = null;
  let isWanted = false;
  const turn = async () => {
    do {
      isWanted = false;
      await draw();
    } while (isWanted);
  };
  return () => {
    if (running) isWanted = true;
    else running = turn().finally(() => (running = null));
    return running;
  };
}
