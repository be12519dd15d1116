// Computes what the goal asks for without looking at a page.
// tasks: answers-days
// reward: 0
// end: answered
const [, from, to] = goal.match(/between (.+) and (.+)\. Answer/);
return answer(Math.round((Date.parse(`${to} UTC`) - Date.parse(`${from} UTC`)) / 86_400_000));
