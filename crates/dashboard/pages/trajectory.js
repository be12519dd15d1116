// One trajectory, step by step: observation, thought, action, outcome. All of it comes from pages and models: shown as text only.

import { ask } from "./ask.js";
import { waterfall } from "./charts.js";
import { card, el, put, svg } from "./dom.js";
import { NONE, count, dollars, duration, moment, number, percent, plural, spacedName } from "./format.js";
import { versions } from "./trajectories.js";

const CAUSES = ["queue", "boot", "observe", "policy", "act", "settle", "record", "finish", "score"];

export async function show(stage, { showNotices, go }) {
  const id = decodeURIComponent(location.pathname.slice("/trajectory/".length));
  const base = `/api/trajectory/${encodeURIComponent(id)}`;
  const { trajectory, steps, siblings, head } = await ask(base);
  showNotices(head);
  const dialog = el("dialog", { class: "raw", "aria-label": "Raw row" });
  const raw = async (step) => {
    const row = await ask(step === null ? `${base}/row` : `${base}/row?step=${step}`).catch((error) => ({
      error: error.message,
    }));
    if (!dialog.isConnected || dialog.open) return;
    const close = el("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
    put(
      dialog,
      el(
        "div",
        { class: "between" },
        el("h2", {}, step === null ? "Row of trajectories" : `Row of step ${step}`),
        close,
      ),
      el("pre", { tabindex: "0" }, JSON.stringify(row, null, 2)),
    );
    dialog.showModal();
  };

  const nodes = steps.map((step) => stepCard(base, step, raw));
  put(
    stage,
    el(
      "nav",
      { class: "crumbs", "aria-label": "Way back" },
      el("a", { href: "/trajectories" }, "Trajectories"),
      " / ",
      el(
        "a",
        { href: `/trajectories?task_id=${encodeURIComponent(trajectory.task_id)}` },
        trajectory.task_id,
      ),
    ),
    el(
      "div",
      { class: "between" },
      el("h1", {}, el("code", {}, trajectory.trajectory_id)),
      el("button", { type: "button", on: { click: () => raw(null) } }, "Raw row"),
    ),
    el("div", { class: "columns wide-left" }, summary(trajectory), verdict(base, trajectory)),
    siblings.length > 1 ? card("The same task under the same draw", {}, group(siblings, id)) : null,
    card("Where its time went", {}, waterfall(split(trajectory.timing), duration, "Time of the trajectory")),
    el(
      "div",
      { class: "between" },
      el("h2", { id: "steps" }, plural(steps.length, "step")),
      el(
        "p",
        { class: "note" },
        el("kbd", {}, "j"),
        " ",
        el("kbd", {}, "k"),
        " go from step to step, ",
        el("kbd", {}, "r"),
        " shows the raw row, ",
        el("kbd", {}, "["),
        " ",
        el("kbd", {}, "]"),
        " go to the siblings.",
      ),
    ),
    steps.length === 0 ? el("p", { class: "card" }, "No step is recorded.") : nodes,
    dialog,
  );

  let at = Math.max(
    0,
    steps.findIndex((step) => location.hash === `#step-${step.step}`),
  );
  const focus = (index) => {
    if (nodes.length === 0) return;
    at = Math.max(0, Math.min(nodes.length - 1, index));
    nodes[at].focus({ preventScroll: true });
    nodes[at].scrollIntoView({ block: "start" });
    history.replaceState(null, "", `#step-${steps[at].step}`);
  };
  if (location.hash) focus(at);

  const sibling = (offset) => {
    const index = siblings.findIndex((row) => row.trajectory_id === id) + offset;
    if (siblings[index]) go(`/trajectory/${encodeURIComponent(siblings[index].trajectory_id)}`);
  };
  const key = (event) => {
    if (
      dialog.open ||
      event.metaKey ||
      event.ctrlKey ||
      event.altKey ||
      event.target.closest?.("input, select, textarea")
    )
      return;
    const inStep = nodes.includes(document.activeElement?.closest?.("article"));
    const moves = {
      j: () => focus(inStep ? at + 1 : at),
      k: () => focus(at - 1),
      r: () => raw(steps[at]?.step ?? null),
      "[": () => sibling(-1),
      "]": () => sibling(1),
    };
    if (moves[event.key]) {
      event.preventDefault();
      moves[event.key]();
    }
  };
  const follow = (event) => {
    const index = nodes.indexOf(event.target.closest?.("article"));
    if (index >= 0) at = index;
  };
  document.addEventListener("keydown", key);
  stage.addEventListener("focusin", follow);
  return { close: () => document.removeEventListener("keydown", key) };
}

function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "dl",
    { class: "facts" },
    present.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

function summary(row) {
  const hashes = Object.entries(row.hashes ?? {}).filter(([, hash]) => hash);
  return card(
    "Task",
    {},
    el("p", { class: "goal" }, row.goal || "The task's page gives the instruction itself."),
    facts([
      ["suite", row.suite],
      ["task", row.task_id],
      ["split", row.split],
      ["start page", row.task?.start_url],
      ["seed", String(row.task?.seed ?? NONE)],
      ["slot", `${row.sample_index + 1} of ${row.group_size}, attempt ${row.attempt + 1}`],
      ["policy", `${row.policy_kind}, version ${versions(row)}`],
      ["behind", row.staleness === null ? NONE : plural(row.staleness, "version")],
      ["context", row.session?.context],
      ["grammar", row.session?.grammar],
      [
        "tokens",
        row.num_response_tokens > 0
          ? `${count(row.num_prompt_tokens)} prompt, ${count(row.num_response_tokens)} response`
          : "none",
      ],
      ["device time", duration(row.gpu_micros)],
      ["began", moment(row.started_at)],
      ["ended", moment(row.ended_at)],
      ["worker", row.environment?.worker],
      ["browser", row.environment?.browser],
      ...hashes.map(([name, hash]) => [
        `hash of ${spacedName(name)}`,
        el("code", { title: hash }, hash.slice(0, 16)),
      ]),
    ]),
  );
}

function verdict(base, row) {
  const score = row.score;
  const picture = row.evidence?.screenshot
    ? el("img", {
        class: "evidence",
        src: `${base}/screenshot/evidence`,
        alt: "Screenshot of the final page",
        loading: "lazy",
      })
    : null;
  const tag = row.status === "failed" ? "bad" : score?.success ? "good" : "";
  return card(
    "End",
    {},
    el("p", {}, el("span", { class: `tag large ${tag}` }, spacedName(row.end)), " ", row.failure_reason),
    row.status === "failed"
      ? el(
          "p",
          { class: "note" },
          "The farm failed this attempt: it has no reward and is excluded from all rates. Its slot is retried while attempts remain.",
        )
      : null,
    facts([
      ["reward", number(row.reward)],
      ["solved", solved(score)],
      [
        "parts",
        score?.components?.length
          ? score.components.map((part) => `${part.name} ${number(part.value)}`).join(", ")
          : null,
      ],
      ["scorer", score ? `${score.scorer}, version ${score.version}` : null],
      ["rationale", score?.rationale],
      ["answer", row.evidence?.answer],
      ["last address", row.evidence?.url],
      ["last title", row.evidence?.title],
      ["cost", row.cost_usd === null ? null : dollars(row.cost_usd)],
      [
        "last outcome",
        row.last_outcome ? `${spacedName(row.last_outcome.name)} ${row.last_outcome.detail}` : null,
      ],
    ]),
    picture,
    row.evidence?.probe_json
      ? el(
          "details",
          {},
          el("summary", {}, "Probe data reported by the page"),
          el("pre", { tabindex: "0" }, row.evidence.probe_json),
        )
      : null,
  );
}

function solved(score) {
  if (!score) return "not scored";
  return { true: "yes", false: "no" }[score.success] ?? "the scorer does not say";
}

/**
 * Siblings side by side: a bar each, as long as its reward. All bars begin at the same 0, and one below it goes to the left
 * of it, hatched.
 */
function group(siblings, id) {
  const rewards = siblings.map((row) => row.reward ?? 0);
  const [least, most] = [Math.min(0, ...rewards), Math.max(0, ...rewards)];
  const span = most - least || 1;
  return el(
    "ul",
    { class: "bars siblings" },
    siblings.map((row) =>
      el(
        "li",
        { class: row.trajectory_id === id ? "at" : null },
        el(
          "a",
          {
            class: "name",
            href: `/trajectory/${encodeURIComponent(row.trajectory_id)}`,
            "aria-current": row.trajectory_id === id ? "true" : null,
          },
          `slot ${row.sample_index + 1}${row.attempt > 0 ? `, attempt ${row.attempt + 1}` : ""}`,
        ),
        el(
          "span",
          { class: "track", "aria-hidden": "true" },
          el("span", {
            class: (row.reward ?? 0) < 0 ? "fill below" : "fill",
            style: {
              "margin-left": `${(100 * (Math.min(0, row.reward ?? 0) - least)) / span}%`,
              width: `${(100 * Math.abs(row.reward ?? 0)) / span}%`,
            },
          }),
        ),
        el("span", { class: "number strong" }, number(row.reward)),
        el("span", { class: "note" }, `${spacedName(row.end)}, ${plural(row.num_steps, "step")}`),
      ),
    ),
  );
}

function split(timing) {
  const parts = CAUSES.map((cause) => ({ cause, micros: timing?.[`${cause}_micros`] ?? 0 })).filter(
    ({ cause }) => timing && `${cause}_micros` in timing,
  );
  const whole = parts.reduce((sum, part) => sum + part.micros, 0);
  return parts.map((part) => ({ ...part, share: whole > 0 ? part.micros / whole : 0 }));
}

function stepCard(base, step, raw) {
  const { action, outcome, observation, engine } = step;
  const isBad = !action.valid || !["ok", "answered", "option_chosen"].includes(outcome.name);
  const text = thought(action);
  return el(
    "article",
    { id: `step-${step.step}`, class: "card step", tabindex: "0", "aria-label": `Step ${step.step + 1}` },
    el(
      "header",
      { class: "between" },
      el(
        "h3",
        {},
        el("a", { href: `#step-${step.step}` }, `Step ${step.step + 1}`),
        " ",
        el("span", { class: "action" }, action.valid ? spacedName(action.name || action.kind) : "no action"),
        " ",
        el("span", { class: `tag ${isBad ? "bad" : "good"}` }, spacedName(outcome.name)),
      ),
      el("button", { type: "button", class: "quiet", on: { click: () => raw(step.step) } }, "Raw row"),
    ),
    el(
      "div",
      { class: "columns wide-left" },
      el(
        "div",
        {},
        shot(base, step),
        el(
          "p",
          { class: "where" },
          el("strong", {}, observation.title || "(no title)"),
          " ",
          el("code", {}, observation.url),
        ),
      ),
      el(
        "div",
        {},
        text ? el("div", { class: "thought" }, el("h4", {}, "Thought"), el("p", {}, text)) : null,
        el("h4", {}, "Action"),
        el("pre", { class: "reply", tabindex: "0" }, action.raw_text || NONE),
        action.error ? el("p", { class: "wrong" }, action.error) : null,
        outcome.detail ? el("p", {}, outcome.detail) : null,
        facts([
          ["reward", step.reward ? number(step.reward) : null],
          [
            "parts",
            step.reward_components?.length
              ? step.reward_components.map((part) => `${part.name} ${number(part.value)}`).join(", ")
              : null,
          ],
          ["at", action.x === null ? null : `${number(action.x)}, ${number(action.y)}`],
          ["version", step.policy_version],
          [
            "tokens",
            engine.prefill_tokens + engine.decode_steps > 0
              ? `${count(engine.prefill_tokens)} prefilled, ${count(engine.reused_tokens)} reused, ${count(engine.decode_steps)} decoded`
              : null,
          ],
          ["state", engine.state_origin],
          ["device", engine.gpu_micros > 0 ? duration(engine.gpu_micros) : null],
          ["ended by", step.finish_reason ? spacedName(step.finish_reason) : null],
          ["picture", `${observation.width} × ${observation.height} ${observation.format}`],
        ]),
        tokens(step),
        waterfall(split(step.timing), duration, `Time of step ${step.step + 1}`),
      ),
    ),
  );
}

/** What a reply says beside its action, where its grammar has a place for that: JSON with `thought` or `note`, or text before the call. */
function thought(action) {
  const text = action.raw_text ?? "";
  try {
    const reply = JSON.parse(text);
    const texts = [reply?.thought, reply?.note].filter((part) => typeof part === "string" && part !== "");
    return texts.length > 0 ? texts.join("\n") : null;
  } catch {
    const before = text
      .split(/<tool_call>|Action:|ACTION:/)[0]
      .replace(/^(Thought|THOUGHT):\s*/, "")
      .replace(/<\/?think>/g, "")
      .trim();
    return before === "" || before === text.trim() ? null : before;
  }
}

/** The screenshot with a mark where the action aims. */
function shot(base, step) {
  const { observation, action } = step;
  const picture = el("img", {
    src: `${base}/screenshot/${step.step}`,
    alt: `Screenshot before step ${step.step + 1}: ${observation.title}`,
    loading: "lazy",
    width: observation.width,
    height: observation.height,
  });
  const marks = [];
  const [x, y] = [action.x, action.y];
  if (x !== null && y !== null) {
    const radius = Math.max(observation.width, observation.height) / 45;
    if (action.from_x !== null)
      marks.push(svg("line", { class: "mark", x1: action.from_x, y1: action.from_y, x2: x, y2: y }));
    marks.push(
      svg("circle", { class: "mark halo", cx: x, cy: y, r: radius }),
      svg("circle", { class: "mark", cx: x, cy: y, r: radius }),
      svg("circle", { class: "mark dot", cx: x, cy: y, r: radius / 6 }),
    );
  }
  const over = svg(
    "svg",
    { class: "over", viewBox: `0 0 ${observation.width} ${observation.height}`, "aria-hidden": "true" },
    marks,
  );
  return el("div", { class: "shot" }, picture, over);
}

/** One box a token, the darker the less likely it was; its numbers under the pointer and in the table of the raw row. */
function tokens(step) {
  const ids = step.response_token_ids;
  if (!ids?.length) return null;
  const boxes = ids.slice(0, 2000).map((id, at) => {
    const logprob = step.logprobs?.[at] ?? null;
    const [forced, sampled] = [step.forced?.[at], step.response_mask?.[at]];
    const chance = logprob === null ? null : Math.exp(logprob);
    const entropy = step.entropy?.[at] ?? null;
    const titleParts = [
      `token ${at}: id ${id}`,
      logprob === null ? "no log-prob" : `log-prob ${logprob.toFixed(3)} (${percent(chance)})`,
      entropy === null ? null : `entropy ${entropy.toFixed(3)}`,
      forced ? "forced by the grammar" : sampled ? null : "appended",
    ];
    return el("span", {
      class: `token ${chance === null ? "unknown" : ""}`,
      title: titleParts.filter(Boolean).join(", "),
      style: chance === null ? {} : { "--doubt": (1 - chance).toFixed(3) },
    });
  });
  const known = (step.logprobs ?? []).filter((value) => value !== null);
  const mean = known.length > 0 ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  return el(
    "details",
    { class: "tokens" },
    el("summary", {}, `${count(ids.length)} tokens, mean log-prob ${mean === null ? NONE : mean.toFixed(3)}`),
    el(
      "div",
      { class: "strip", role: "img", "aria-label": `${ids.length} tokens, darker where less likely` },
      boxes,
    ),
  );
}
