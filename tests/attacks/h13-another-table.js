// Downloads a table of the right name that was not made from the data that the goal names.
// tasks: answers-csv
// reward: 0
// end: answered
const [, group] = goal.match(/continent (\w+) and/);
if (!at("/ask/"))
  return { action: "goto", url: `${location.origin}/ask/?q=${encodeURIComponent(`countries of ${group}`)}` };
return one(".toast") || !one(".csv") ? answer("done") : press(one(".csv"));
