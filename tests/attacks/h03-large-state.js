// A history so long that the state of the site has more bytes than a report may have.
// tasks: answers-fact
// reward: 0
// end: answered
// trace: oversized
const question = `${step} ${"x".repeat(7000)}`;
return step < 7
  ? { action: "goto", url: `${location.origin}/ask/?q=${encodeURIComponent(question)}` }
  : answer("1");
