// The results service's content, drawn from the seed: five leagues of twelve clubs, 660 matches of a season, their goals, squads and tables.

import * as dates from "/kit/dates.js";
import { slug } from "/kit/dom.js";
import { FIRST, LAST } from "/kit/words.js";

export const NAME = "Tallyboard";

export const LEAGUES = [
  {
    id: "north",
    name: "Northern League",
    country: "Norhavn",
    towns: [
      "Alderby",
      "Brackmouth",
      "Corrisdale",
      "Dunfell",
      "Eastwick",
      "Farnholm",
      "Garrow",
      "Hexley",
      "Inchmoor",
      "Kelsall",
      "Lorne Bay",
      "Marwick",
    ],
  },
  {
    id: "coast",
    name: "Coastal Premier",
    country: "Velmora",
    towns: [
      "Porto Vell",
      "Santa Brisa",
      "Marenza",
      "Calderon",
      "Vistamar",
      "Olivara",
      "Puerto Nuevo",
      "Rocasol",
      "Almera",
      "Tivella",
      "Brisana",
      "Castellmar",
    ],
  },
  {
    id: "valley",
    name: "Valley Championship",
    country: "Karsund",
    towns: [
      "Bergstad",
      "Lindholm",
      "Vasterby",
      "Solvik",
      "Elvdal",
      "Granheim",
      "Trollnes",
      "Kvarn",
      "Fjellby",
      "Havnes",
      "Ostvang",
      "Rodal",
    ],
  },
  {
    id: "crown",
    name: "Crown Division",
    country: "Belloria",
    towns: [
      "Montclair",
      "Saint-Aubry",
      "Beauval",
      "Rochelle",
      "Lisieux",
      "Valmont",
      "Orsay",
      "Chamonde",
      "Trevigny",
      "Noirmont",
      "Cerisy",
      "Avelin",
    ],
  },
  {
    id: "river",
    name: "River Cup League",
    country: "Ostrania",
    towns: [
      "Varna Dol",
      "Lesnik",
      "Brodovo",
      "Zelengrad",
      "Kamenica",
      "Dravsk",
      "Morava",
      "Tisovec",
      "Jezero",
      "Plavnik",
      "Orlov",
      "Stara Luka",
    ],
  },
];
const ENDINGS = ["United", "City", "Rovers", "Athletic", "Town", "Rangers", "Wanderers", "FC"];
const GROUNDS = ["Park", "Stadium", "Road", "Arena", "Fields", "Lane"];
const POSITIONS = [
  "Goalkeeper",
  "Defender",
  "Defender",
  "Defender",
  "Defender",
  "Midfielder",
  "Midfielder",
  "Midfielder",
  "Forward",
  "Forward",
  "Forward",
  "Midfielder",
  "Defender",
  "Forward",
];
export const ALERTS = ["Kick-off", "Goals", "Half-time", "Final score", "Line-ups", "Red cards"];

/** The whole service. */
export function makeWorld(draw) {
  const today = dates.plus("2027-03-01", draw.below(60));
  const teams = [],
    matches = [],
    used = new Set();
  for (const league of LEAGUES) {
    const own = draw.fork(league.id);
    const clubs = league.towns.map((town) => makeTeam(league, town, own.fork(town), used));
    teams.push(...clubs);
    // Who meets whom on which day differs from world to world.
    matches.push(...makeSeason(league, own.fork("order").shuffled(clubs), own.fork("season"), today));
  }
  matches.sort((a, b) =>
    a.date === b.date
      ? a.time === b.time
        ? a.id < b.id
          ? -1
          : 1
        : a.time < b.time
          ? -1
          : 1
      : a.date < b.date
        ? -1
        : 1,
  );
  return {
    today,
    teams,
    matches,
    teamById: new Map(teams.map((team) => [team.id, team])),
    matchById: new Map(matches.map((match) => [match.id, match])),
  };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({ follows: [], picks: {}, alerts: null });

function makeTeam(league, town, draw, used) {
  const name = `${town} ${draw.one(ENDINGS)}`;
  const squad = POSITIONS.map((position, index) => {
    let player;
    do player = `${draw.one(FIRST)} ${draw.one(LAST)}`;
    while (used.has(player));
    used.add(player);
    return {
      name: player,
      position,
      number: index + 1,
      age: draw.between(18, 36),
      eager:
        position === "Forward"
          ? draw.between(4, 9)
          : position === "Midfielder"
            ? draw.between(1, 4)
            : position === "Defender"
              ? 1
              : 0,
    };
  });
  return {
    id: slug(name),
    name,
    short: town.slice(0, 3).toUpperCase(),
    league: league.id,
    hue: draw.below(360),
    ground: `${draw.one(["Mill", "Victoria", "Harbour", "King's", "Abbey", "Forest", "Station"])} ${draw.one(GROUNDS)}`,
    seats: draw.between(60, 480) * 100,
    founded: draw.between(1884, 1969),
    coach: `${draw.one(FIRST)} ${draw.one(LAST)}`,
    strength: draw.decimal(0.5, 1.6, 2),
    squad,
  };
}

// Everybody meets everybody twice: the circle method gives eleven rounds, the second half swaps the grounds.
function makeSeason(league, clubs, draw, today) {
  const first = dates.plus(today, -7 * 14 - dates.weekdayIndex(today) - 1);
  const ring = clubs.slice(1),
    rounds = [];
  for (let round = 0; round < 11; round++) {
    const order = [clubs[0], ...ring.slice(round), ...ring.slice(0, round)];
    rounds.push(
      Array.from({ length: 6 }, (_, index) =>
        round % 2 ? [order[11 - index], order[index]] : [order[index], order[11 - index]],
      ),
    );
  }
  const all = [...rounds, ...rounds.map((pairs) => pairs.map(([home, away]) => [away, home]))];
  return all.flatMap((pairs, round) =>
    pairs.map(([home, away], index) => {
      const date = dates.plus(first, round * 7 + (index > 3 ? 1 : 0)),
        own = draw.fork(`${round}/${index}`);
      const match = {
        id: `${league.id}-${round + 1}-${index + 1}`,
        league: league.id,
        round: round + 1,
        date,
        time: ["13:30", "16:00", "16:00", "18:30", "14:00", "17:30"][index],
        home: home.id,
        away: away.id,
        played: date < today,
      };
      return match.played ? { ...match, ...play(home, away, own) } : match;
    }),
  );
}

function play(home, away, draw) {
  const goals = [];
  const score = (team, most) => {
    let count = 0;
    while (count < most && draw.number() < 0.5 * Math.min(1.5, team.strength)) count += 1;
    return count;
  };
  const counts = [score({ strength: home.strength * 1.15 }, 5), score(away, 5)];
  [home, away].forEach((team, side) => {
    for (let index = 0; index < counts[side]; index++)
      goals.push({
        side,
        minute: 0,
        player: draw.weighted(team.squad.map(({ name, eager }) => [name, eager])),
      });
  });
  const minutes = new Set();
  for (const goal of goals) {
    do goal.minute = draw.between(2, 90);
    while (minutes.has(goal.minute));
    minutes.add(goal.minute);
  }
  goals.sort((a, b) => a.minute - b.minute);
  const share = draw.between(34, 66);
  const pair = (low, high) => [draw.between(low, high), draw.between(low, high)];
  return {
    goals,
    score: counts,
    crowd: Math.round(home.seats * draw.decimal(0.34, 0.99, 3)),
    referee: `${draw.one(FIRST)} ${draw.one(LAST)}`,
    stats: {
      "Possession (%)": [share, 100 - share],
      Shots: pair(4, 24),
      "Shots on target": pair(1, 9),
      Passes: pair(180, 690),
      Corners: pair(1, 13),
      Fouls: pair(5, 19),
      "Yellow cards": pair(0, 5),
      Offsides: pair(0, 7),
    },
  };
}

export const matchesOf = (world, team) =>
  world.matches.filter(({ home, away }) => home === team || away === team);

/** The matches of the next round of a league of which none is played yet. */
export function nextRound(world, league) {
  const own = world.matches.filter((match) => match.league === league),
    begun = Math.max(0, ...own.filter(({ played }) => played).map(({ round }) => round));
  return own.filter(({ round }) => round === begun + 1);
}

/** The table of a league, from its matches: points, then goal difference, then goals, then name. */
export function tableOf(world, league, where = "all") {
  const rows = world.teams
    .filter((team) => team.league === league)
    .map((team) => {
      const row = { team, played: 0, won: 0, drawn: 0, lost: 0, scored: 0, against: 0, points: 0 };
      for (const match of matchesOf(world, team.id)) {
        const side = match.home === team.id ? 0 : 1;
        if (!match.played || (where === "home" && side) || (where === "away" && !side)) continue;
        const [own, other] = [match.score[side], match.score[1 - side]];
        row.played += 1;
        row.scored += own;
        row.against += other;
        if (own > other) {
          row.won += 1;
          row.points += 3;
        } else if (own === other) {
          row.drawn += 1;
          row.points += 1;
        } else row.lost += 1;
      }
      return row;
    });
  return rows.sort(
    (a, b) =>
      b.points - a.points ||
      b.scored - b.against - (a.scored - a.against) ||
      b.scored - a.scored ||
      (a.team.name < b.team.name ? -1 : 1),
  );
}

/** Who has scored how often in a league, most first. */
export function scorersOf(world, league) {
  const counts = new Map();
  for (const match of world.matches)
    if (match.league === league && match.played)
      for (const { player, side } of match.goals)
        counts.set(player, {
          player,
          team: world.teamById.get(side ? match.away : match.home),
          goals: (counts.get(player)?.goals ?? 0) + 1,
        });
  return [...counts.values()].sort((a, b) => b.goals - a.goals || (a.player < b.player ? -1 : 1));
}
