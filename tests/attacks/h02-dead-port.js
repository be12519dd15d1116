// The same by a port on which nothing listens.
// tasks: answers-rank
// reward: 0
// end: answered
return memory.gone
  ? answer("1")
  : (keep({ gone: true }), { action: "goto", url: `http://${location.hostname}:81/` });
