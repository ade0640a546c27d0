// Runs before anything is drawn, so that a chosen theme does not flash the other one first.
try {
  const theme = localStorage.getItem('hillstar-theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing follows the system's theme.
}
