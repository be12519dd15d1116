// The results service's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, until } from "/kit/tasks.js";
import { ALERTS, LEAGUES, matchesOf, nextRound, scorersOf, tableOf } from "/world.js";

const names = (world, match) => [world.teamById.get(match.home).name, world.teamById.get(match.away).name];
const versus = (world, match) => {
  const [home, away] = names(world, match);
  return `"${home}" against "${away}" on ${dates.long(match.date)}`;
};
const played = (world) => world.matches.filter((match) => match.played);

export const tasks = {
  "sports-crowd"(world, draw) {
    return until(draw, (draw) => {
      const match = draw.one(played(world));
      return {
        goal: `How many spectators saw the match of ${versus(world, match)}? Answer with the number.`,
        expected: match.crowd,
      };
    });
  },

  "sports-coach"(world, draw) {
    const team = draw.one(world.teams);
    return { goal: `Who is the coach of "${team.name}"? Answer with the full name.`, expected: team.coach };
  },

  "sports-referee"(world, draw) {
    return until(draw, (draw) => {
      const match = draw.one(played(world));
      return {
        goal: `Who was the referee of the match of ${versus(world, match)}? Answer with the full name.`,
        expected: match.referee,
      };
    });
  },

  "sports-follow"(world, draw) {
    const [one, two] = draw.some(world.teams, 2);
    return {
      goal: `Follow the teams "${one.name}" and "${two.name}". Answer "done" at the end.`,
      touches: ["follows"],
      correct: ({ follows }) => same(follows, [one.id, two.id]),
    };
  },

  "sports-points"(world, draw) {
    return until(draw, (draw) => {
      const league = draw.one(LEAGUES),
        row = draw.one(tableOf(world, league.id));
      return {
        goal: `How many points has "${row.team.name}" in the table of the ${league.name}? Answer with the number.`,
        expected: row.points,
      };
    });
  },

  "sports-top-scorer"(world, draw) {
    // In about one world of 1,200 two players share the lead in every league.
    const led = LEAGUES.filter(({ id }) => {
      const [first, second] = scorersOf(world, id);
      return first.goals > second.goals;
    });
    return until(draw, (draw) => {
      const league = draw.one(LEAGUES);
      if (led.length && !led.includes(league)) return null;
      return {
        goal: `Who leads the list of top scorers in the ${league.name}? ${led.length ? "" : "Players with the same number of goals are listed in alphabetical order. "}Answer with the full name.`,
        expected: scorersOf(world, league.id)[0].player,
      };
    });
  },

  "sports-away"(world, draw) {
    return until(draw, (draw) => {
      const league = draw.one(LEAGUES),
        where = draw.one(["home", "away"]),
        rows = tableOf(world, league.id, where).sort((a, b) => a.against - b.against);
      if (rows[0].against === rows[1].against) return null;
      return {
        goal: `Counting only ${where} matches, which team of the ${league.name} has let in the fewest goals? Answer with its name.`,
        expected: rows[0].team.name,
      };
    });
  },

  "sports-stat"(world, draw) {
    return until(draw, (draw) => {
      const match = draw.one(played(world)),
        side = draw.below(2),
        stat = draw.one(["Possession (%)", "Shots", "Fouls", "Corners"]);
      return {
        goal: `Look at the statistics of the match of ${versus(world, match)}. What is given for "${stat}" of "${names(world, match)[side]}"? Answer with the number.`,
        expected: match.stats[stat][side],
      };
    });
  },

  "sports-first-goal"(world, draw) {
    return until(draw, (draw) => {
      const match = draw.one(played(world));
      return match.goals.length
        ? {
            goal: `In which minute was the first goal scored in the match of ${versus(world, match)}? Answer with the number.`,
            expected: match.goals[0].minute,
          }
        : null;
    });
  },

  "sports-oldest"(world, draw) {
    return until(draw, (draw) => {
      const team = draw.one(world.teams),
        [first, second] = [...team.squad].sort((a, b) => b.age - a.age);
      return first.age === second.age
        ? null
        : {
            goal: `Who is the oldest player in the squad of "${team.name}"? Answer with the full name.`,
            expected: first.name,
          };
    });
  },

  "sports-unfollow"(world, draw) {
    const league = draw.one(LEAGUES),
      gone = draw.some(
        world.teams.filter((team) => team.league === league.id),
        2,
      ),
      kept = draw.some(
        world.teams.filter((team) => team.league !== league.id),
        3,
      );
    return {
      goal: `Stop following all teams of the ${league.name} and keep the others. Answer "done" at the end.`,
      state: { follows: draw.shuffled([...gone, ...kept]).map(({ id }) => id) },
      touches: ["follows"],
      correct: ({ follows }) =>
        same(
          follows,
          kept.map(({ id }) => id),
        ),
    };
  },

  "sports-alerts"(world, draw) {
    const chosen = draw.some(ALERTS, 3),
      email = `${draw.one(["fan", "coach", "desk"])}${draw.between(10, 99)}@mailbox.example`;
    return {
      goal: `Set match alerts for "${chosen[0]}", "${chosen[1]}" and "${chosen[2]}", and nothing else, to ${email}. Answer "done" at the end.`,
      touches: ["alerts"],
      correct: ({ alerts }) => alerts?.email === email && same(alerts.chosen, chosen),
    };
  },

  "sports-picks"(world, draw) {
    const league = draw.one(LEAGUES),
      next = draw.some(nextRound(world, league.id), 3);
    const wanted = next.map((match) => [match.id, draw.below(3)]);
    const told = wanted.map(([id, pick]) => {
      const [home, away] = names(world, world.matchById.get(id));
      return pick === 1 ? `a draw between "${home}" and "${away}"` : `a win of "${pick ? away : home}"`;
    });
    return {
      goal: `Predict for the next round of the ${league.name}: ${told.slice(0, 2).join(", ")} and ${told[2]}. Predict nothing else, and save. Answer "done" at the end.`,
      touches: ["picks"],
      correct: ({ picks }) =>
        Object.keys(picks).length === 3 && wanted.every(([id, pick]) => picks[id] === pick),
    };
  },

  "sports-goals-of"(world, draw) {
    return until(draw, (draw) => {
      const three = draw
        .some(world.teams, 3)
        .map((team) => ({ team, row: tableOf(world, team.league).find((row) => row.team === team) }));
      return {
        goal: `How many goals have these three teams scored together in their leagues this season: "${three.map(({ team }) => team.name).join('", "')}"? Answer with the number.`,
        expected: three.reduce((sum, { row }) => sum + row.scored, 0),
      };
    });
  },

  "sports-next"(world, draw) {
    return until(draw, (draw) => {
      const team = draw.one(world.teams),
        coming = matchesOf(world, team.id).filter((match) => !match.played && match.away === team.id)[1];
      return coming
        ? {
            goal: `Against whom does "${team.name}" play its second away match from now on? Answer with the name of the team.`,
            expected: names(world, coming)[0],
          }
        : null;
    });
  },
};
