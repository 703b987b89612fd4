// Dark or light: as the system says, until someone chooses.

export function currentTheme(): string {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

export function setTheme(theme: string | null): void {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}

export function nextTheme(): string {
  return (document.documentElement.dataset.theme = currentTheme() === "dark" ? "light" : "dark");
}
