// Dark or light: as the system says, until someone chooses.

const KEY = "clew-theme";

function stored(): string | null {
  // Storage is barred in sandboxed frames.
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function currentTheme(): string {
  const chosen = document.documentElement.dataset.theme ?? stored();
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
    return chosen;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function nextTheme(): string {
  const next = currentTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Then it lasts as long as the page.
  }
  return next;
}
