// Runs before the first paint, so that a remembered theme never flashes. Without a choice the system's preference holds.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* private window: not kept */ } };
  const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const current = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  const chosen = recall();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const other = () => (current() === "dark" ? "light" : "dark");
    const label = () => { button.textContent = other() === "dark" ? "Dark" : "Light"; };
    button.addEventListener("click", () => {
      root.dataset.theme = other();
      remember(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    label();
  });
})();
