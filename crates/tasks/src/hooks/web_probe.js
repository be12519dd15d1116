(async () => {
  /* Between two pages of a site there is a moment without the library; a page that never has it is none of the suite's. */
  const ours = () => location.hostname.endsWith('.{suite}.test');
  for (let wait = 0; wait < 40 && !window.furrow && ours(); wait++) await new Promise((resume) => setTimeout(resume, 50));
  return window.furrow ? window.furrow.probe() : { done: false, away: location.protocol };
})()
