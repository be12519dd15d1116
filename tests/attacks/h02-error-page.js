// The browser's own error page in front, where no report can be asked for.
// tasks: answers-fact, answers-save
// reward: 0
// end: answered
// trace: https://
return { action: "goto", url: `https://${location.host}/` };
