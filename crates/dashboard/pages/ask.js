// Asks the server, and hears from it when something changed.

/** The answer to a GET of our own API, or an error in the server's words. */
export async function ask(path, signal) {
  const response = await fetch(path, {
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
export async function tellServer(path) {
  const response = await fetch(path, { method: "POST", credentials: "same-origin" });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

/** Calls `changed` with the newest word of the server, at most once in `rest` milliseconds, and `lost` when the connection is gone. */
export function hear(changed, lost, rest = 1000) {
  let source;
  let again;
  let waiting = null;
  let last = 0;
  const tell = () => {
    const word = waiting;
    waiting = null;
    last = Date.now();
    if (word) changed(word);
  };
  const open = () => {
    source?.close();
    clearTimeout(again);
    source = new EventSource("/api/events");
    source.onmessage = (event) => {
      const isFirst = waiting === null;
      waiting = JSON.parse(event.data);
      if (isFirst) setTimeout(tell, Math.max(0, last + rest - Date.now()));
    };
    source.onopen = () => lost(false);
    source.onerror = () => {
      lost(true);
      // A browser tries again by itself after a lost connection, and never after an answer that was none: a proxy's 502.
      clearTimeout(again);
      if (source.readyState === EventSource.CLOSED) again = setTimeout(open, 5000);
    };
  };
  open();
  // A tab that nobody sees listens to nothing.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(again);
    source.close();
    if (!document.hidden) open();
  });
}

/** Calls `draw` one time after another: whoever calls meanwhile gets one more turn after it, however often it calls. */
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
