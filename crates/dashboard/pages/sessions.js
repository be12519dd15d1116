// Sessions: a tile for each trajectory that runs, with its newest picture. Only tiles in sight ask for theirs.

import { ask, inTurn } from "./ask.js";
import { el, put } from "./dom.js";
import { duration, plural, spacedName } from "./format.js";

export async function show(stage, { showNotices }) {
  const tiles = new Map();
  const grid = el("div", { class: "sessions", role: "list", "aria-label": "Sessions" });
  const note = el("p", { class: "note", role: "status" });
  const visibility = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const tile = tiles.get(entry.target.dataset.id);
        if (!tile) continue;
        tile.inSight = entry.isIntersecting;
        if (tile.inSight) fetchStep(tile);
      }
    },
    { rootMargin: "200px" },
  );
  put(stage, el("h1", {}, "Sessions"), note, grid);

  let isOpen = true;
  // A coordinator that is late answers nothing: the tiles stay until it says something else.
  const draw = inTurn(async () => {
    const { head, is_live, sessions } = await ask("/api/sessions");
    if (!isOpen) return;
    showNotices(head);
    note.textContent = is_live
      ? `${plural(sessions.length, "session")} running`
      : "Nothing runs: the job is over, or its coordinator does not answer.";
    const running = new Set(sessions.map((session) => session.trajectory_id));
    for (const [id, tile] of tiles) {
      if (running.has(id)) continue;
      visibility.unobserve(tile.node);
      // The focus on a tile that goes moves to its neighbour, not to the top of the page.
      if (tile.node === document.activeElement)
        (tile.node.nextElementSibling ?? tile.node.previousElementSibling)?.focus({ preventScroll: true });
      tile.node.remove();
      tiles.delete(id);
    }
    for (const session of sessions) {
      let tile = tiles.get(session.trajectory_id);
      if (!tile) {
        tile = make(session);
        tiles.set(session.trajectory_id, tile);
        grid.append(tile.node);
        visibility.observe(tile.node);
      }
      tile.session = session;
      if (tile.inSight && tile.displayedStep !== session.steps) fetchStep(tile);
    }
  });

  /** How long each waits, once a second, without a request. */
  const tick = () => {
    for (const tile of tiles.values()) {
      const since = tile.last?.observed_at ?? tile.session.started_at;
      tile.since.textContent = duration(Math.max(0, Date.now() * 1000 - since));
      tile.state.textContent = tile.session.steps === 0 ? "first step" : `step ${tile.session.steps + 1}`;
    }
  };

  async function fetchStep(tile) {
    const steps = tile.session.steps;
    if (steps === 0 || tile.displayedStep === steps || tile.isAsking) return;
    tile.isAsking = true;
    try {
      const base = `/api/sessions/${encodeURIComponent(tile.session.trajectory_id)}`;
      tile.last = await ask(base);
      const picture = el("img", {
        src: `${base}/screenshot?step=${tile.last.step}`,
        alt: `Newest screenshot: ${tile.last.title}`,
      });
      // Put there when it is whole; until then, and where there is none any more, what was there stays.
      picture.decode().then(
        () => put(tile.frame, picture),
        () => (tile.displayedStep = 0),
      );
      tile.displayedStep = steps;
      put(
        tile.did,
        spacedName(tile.last.action),
        " ",
        el(
          "span",
          {
            class: `tag ${["ok", "answered", "option_chosen"].includes(tile.last.outcome) ? "good" : "bad"}`,
          },
          spacedName(tile.last.outcome),
        ),
      );
      tile.node.title = tile.last.url;
    } catch {
      // It ended between two looks: its tile goes with the next one.
    } finally {
      tile.isAsking = false;
    }
  }

  function make(session) {
    const frame = el("div", { class: "frame" }, el("p", { class: "note" }, "No picture yet"));
    const [state, since] = [el("span", { class: "strong" }), el("span", { class: "number" })];
    const did = el("p", { class: "note did" }, "no step yet");
    const node = el(
      "article",
      {
        class: "session",
        role: "listitem",
        tabindex: "0",
        "data-id": session.trajectory_id,
        "aria-label": `${session.task_id}, ${session.trajectory_id}`,
      },
      frame,
      el("p", { class: "between" }, state, since),
      el("p", { class: "task", title: session.task_id }, session.task_id),
      did,
      el("p", { class: "note" }, el("code", {}, session.trajectory_id)),
    );
    return {
      session,
      node,
      frame,
      state,
      since,
      did,
      inSight: false,
      displayedStep: 0,
      last: null,
      isAsking: false,
    };
  }

  await draw();
  tick();
  const ticking = setInterval(tick, 1000);
  return {
    changed: () => draw().then(tick, () => {}),
    close: () => {
      isOpen = false;
      clearInterval(ticking);
      visibility.disconnect();
    },
  };
}
