// An input that keeps a script of the page busy for as long as possible.
// tasks: answers-fact
// reward: 0
// end: answered, script_loop, max_time
// trace: 9007199254740881
const numbers = Array(120).fill("9007199254740881").join(", ");
const questions = [`gcd of ${numbers}`, `lcm of ${numbers}`, "factor 9007199254740881", "9^9^9^9"];
return step <= questions.length
  ? { action: "goto", url: `${location.origin}/ask/?q=${encodeURIComponent(questions[step - 1])}` }
  : answer("1");
