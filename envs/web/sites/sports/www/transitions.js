// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { email as emailProblem, refuse } from "/kit/rules.js";
import { ALERTS, nextRound } from "/world.js";

/** What is wrong with the alerts that were ticked; empty if nothing is. */
export const alertsProblem = (chosen) => (chosen.length ? "" : "Choose at least one alert.");

export const transitions = {
  "team.follow"(now, { id }, world) {
    if (!world.teamById.has(id)) throw new Error("no such team");
    if (now.follows.includes(id)) throw new Error("this team is followed already");
    now.follows.push(id);
  },

  "team.unfollow"(now, { id }, world) {
    if (!world.teamById.has(id)) throw new Error("no such team");
    now.follows = now.follows.filter((one) => one !== id);
  },

  /** `picks` maps matches of a coming round to 0 (home), 1 (draw) or 2 (away). Predictions for other matches stay. */
  "picks.save"(now, { picks }, world) {
    for (const [id, pick] of Object.entries(picks)) {
      const match = world.matchById.get(id);
      if (!match || !nextRound(world, match.league).includes(match))
        throw new Error("no prediction is taken for this match");
      if (![0, 1, 2].includes(pick)) throw new Error("no such result");
    }
    now.picks = { ...now.picks, ...picks };
  },

  "alerts.set"(now, { email, chosen }) {
    refuse(alertsProblem(chosen));
    refuse(emailProblem(email));
    if (new Set(chosen).size !== chosen.length || !chosen.every((one) => ALERTS.includes(one)))
      throw new Error("no such alert");
    now.alerts = { email, chosen };
  },
};
