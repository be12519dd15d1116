// Sessions: a tile for each trajectory that runs, with its newest picture. Only tiles in sight ask for theirs.

import { ask, inTurn } from "./ask.js";
import { cutMiddle, el, put } from "./dom.js";
import { duration, number, plural, spacedName } from "./format.js";
import { recorded } from "./picture.js";
import { isGoodOutcome, outcomeOf, resultTag } from "./result.js";

/** Pictures of a run that is over. */
const LAST = 12;

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
  const last = el("section", { "aria-label": "The last trajectories" });
  put(stage, el("h1", {}, "Sessions"), note, grid, last);

  let isOpen = true;
  // A coordinator that is late answers nothing: the tiles stay until it says something else.
  const draw = inTurn(async () => {
    const { head, is_live, sessions } = await ask("/api/sessions");
    if (!isOpen) return;
    showNotices(head);
    note.textContent = is_live
      ? `${plural(sessions.length, "session")} running`
      : "Nothing runs: the job is over, or its coordinator does not answer.";
    if (is_live) put(last);
    else if (!last.hasChildNodes()) await showLast();
    if (!isOpen) return;
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
      if (tile.inSight) fetchStep(tile);
    }
  });

  /** Of a run that is over: how its last trajectories looked at their end. */
  async function showLast() {
    const { rows } = await ask(`/api/trajectories?limit=${LAST}&sort=ended_at&order=desc`);
    if (rows.length === 0) return;
    put(last, el("h2", {}, "The last trajectories"), el("div", { class: "sessions" }, rows.map(ended)));
  }

  /** What its policy got first, until the first step is recorded. */
  function fetchFirst(tile) {
    if (!tile.session.first_shown || tile.isFirstRequested) return;
    tile.isFirstRequested = true;
    const picture = el("img", {
      src: `/api/sessions/${encodeURIComponent(tile.session.trajectory_id)}/screenshot?step=0`,
      alt: "First page",
    });
    picture.decode().then(
      () => tile.displayedStep === 0 && put(tile.frame, picture),
      () => {},
    );
  }

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
    if (steps === 0) fetchFirst(tile);
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
            class: `tag ${isGoodOutcome(tile.last.outcome) ? "good" : "bad"}`,
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
    const frame = el(
      "div",
      { class: "frame" },
      el("p", { class: "note" }, "Its next picture comes with its first step."),
    );
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
      el("p", { class: "note" }, cutMiddle(session.trajectory_id)),
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

function ended(row) {
  const address = `/trajectory/${encodeURIComponent(row.trajectory_id)}`;
  return el(
    "a",
    { class: "session ended", href: address },
    el(
      "div",
      { class: "frame" },
      row.num_steps > 0
        ? recorded({
            src: `/api${address}/screenshot/${row.num_steps - 1}`,
            alt: "Its last step",
            loading: "lazy",
          })
        : el("p", { class: "note" }, "It ended before its first step."),
    ),
    el(
      "p",
      { class: "between" },
      resultTag(outcomeOf(row)),
      el("span", { class: "number" }, `reward ${number(row.reward)}`),
    ),
    el("p", { class: "task", title: row.task_id }, row.task_id),
    el("p", { class: "note" }, `${spacedName(row.end)}, ${plural(row.num_steps, "step")}`),
    el("p", { class: "note" }, cutMiddle(row.trajectory_id)),
  );
}
