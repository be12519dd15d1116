// Opens a list by its address, narrowed and sorted: a legitimate way to the same answer.
// tasks: answers-filter
// reward: 1
// end: answered
const [, least] = goal.match(/at least (\d+) square/);
if (!at("/data/") || !location.search)
  return { action: "goto", url: `${location.origin}/data/?by=area&least=${least}` };
return demonstrate();
