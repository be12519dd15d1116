(() => {
  const page = window.grounding;
  if (!page) return { done: false, away: location.protocol };
  return page.click ? { done: true, click: page.click } : { done: false };
})()
