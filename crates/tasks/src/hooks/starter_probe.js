(() => {
  /* A page without the library is none of the suite's: the policy has gone elsewhere, or the browser shows an error. */
  return window.furrow ? window.furrow.probe() : { done: false, away: location.protocol };
})()
