// Light or dark: the system's choice unless the user has made another.
export type Theme = 'system' | 'light' | 'dark';

const kName = 'hillstar-theme'; // public/theme.js reads it too

export function currentTheme(): Theme {
  const { theme } = document.documentElement.dataset;
  return theme === 'light' || theme === 'dark' ? theme : 'system';
}

export function setTheme(theme: Theme): void {
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === 'system') localStorage.removeItem(kName);
    else localStorage.setItem(kName, theme);
  } catch {
    // The choice then lives as long as the page.
  }
  dispatchEvent(new Event('hillstar-theme'));
}
