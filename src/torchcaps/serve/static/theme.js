// Runs before the first paint, so that a stored theme does not flash. Without one the system's preference applies.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const store = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* private window */ } };
  const load = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const current = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  const chosen = load();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const other = () => (current() === "dark" ? "light" : "dark");
    const label = () => { button.textContent = other() === "dark" ? "Dark" : "Light"; };
    button.addEventListener("click", () => {
      root.dataset.theme = other();
      store(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    label();
  });
})();
