(() => {
  /* The page of another's application: it may have the library, and is not asked for it. Only the browser's own pages,
     such as an error page, are none of the task's. */
  if (window.furrow?.probe) return window.furrow.probe();
  return location.protocol.startsWith('http') ? { done: false } : { done: false, away: location.protocol };
})()
