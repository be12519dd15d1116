// The results service's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, until } from "/kit/tasks.js";
import { ALERTS, LEAGUES, matchesOf, nextRound, scorersOf, tableOf } from "/world.js";

const names = (world, match) => [world.teamById.get(match.home).name, world.teamById.get(match.away).name];
const versus = (world, match) => {
  const [home, away] = names(world, match);
  return `"${home}" against "${away}" on ${dates.long(match.date)}`;
};
const SCORER_PLACES = ["first", "second", "third", "fourth", "fifth"];
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
        [one, two] = draw.some(tableOf(world, league.id), 2);
      return {
        goal: `How many points have "${one.team.name}" and "${two.team.name}" together in the table of the ${league.name}? Answer with the number.`,
        expected: one.points + two.points,
      };
    });
  },

  "sports-top-scorer"(world, draw) {
    // Players with the same number of goals have no place of their own. In a few worlds there are such on all places.
    const asked = LEAGUES.flatMap((league) => {
      const list = scorersOf(world, league.id);
      return SCORER_PLACES.map((told, at) => ({
        league,
        told,
        player: list[at].player,
        alone: list.filter(({ goals }) => goals === list[at].goals).length === 1,
      }));
    });
    const unshared = asked.filter(({ alone }) => alone),
      { league, told, player } = draw.one(unshared.length ? unshared : asked);
    return {
      goal: `Who is ${told} in the list of top scorers in the ${league.name}? ${unshared.length ? "" : "Players with the same number of goals are listed in alphabetical order. "}Answer with the full name.`,
      expected: player,
    };
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
        stat = draw.one(["Possession (%)", "Shots", "Fouls", "Passes"]);
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
    const leagues = draw.some(LEAGUES, draw.between(1, 2)),
      stays = draw.chance(),
      isNamed = ({ league }) => leagues.some(({ id }) => id === league);
    // One team of each league that the goal names, and others.
    const named = leagues.map(({ id }) => draw.one(world.teams.filter((team) => team.league === id)));
    const [gone, kept] = [true, false].map((leaves) => {
      const count = leaves ? draw.between(2, 3) : draw.between(3, 5);
      if (leaves === stays)
        return draw.some(
          world.teams.filter((team) => !isNamed(team)),
          count,
        );
      const more = world.teams.filter((team) => isNamed(team) && !named.includes(team));
      return [...named, ...draw.some(more, count - named.length)];
    });
    const told = leagues.map(({ name }) => `the ${name}`).join(" and ");
    return {
      goal: `${stays ? `Of the teams that are followed, keep those of ${told} and stop following all others.` : `Stop following all teams of ${told} and keep the others.`} Answer "done" at the end.`,
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
