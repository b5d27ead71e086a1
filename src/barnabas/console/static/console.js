// Keeps a page fresh by fetching it again, as it is; theme and keys. The pages work without it.
"use strict";
(() => {
  const main = document.getElementById("main");
  const lost = document.getElementById("lost");
  const theme = document.getElementById("theme");

  // The theme: as the system, or as was chosen here.
  const themes = ["system", "light", "dark"];
  const remembered = () => {
    try { return localStorage.getItem("theme") || "system"; } catch { return "system"; }
  };
  let chosen = remembered();
  const show = () => {
    if (chosen === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", chosen);
    theme.textContent = "Theme: " + chosen;
  };
  const next = () => {
    chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
    try { localStorage.setItem("theme", chosen); } catch { /* it holds for this page only */ }
    show();
  };
  theme.hidden = false;
  theme.addEventListener("click", next);
  show();

  // On a phone the menu is wider than the window.
  const here = document.querySelector("nav a[aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;

  // Keys, unless somebody writes.
  document.addEventListener("keydown", (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.closest("input, select, textarea")) return;
    if (event.key === "t") next();
    if (event.key === "/") {
      const field = document.getElementById("q");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    }
    const page = [...document.querySelectorAll("nav a")].find((each) => each.dataset.key === event.key);
    if (page) page.click();
  });

  // Fresh pages. Nothing moves under somebody who selects, or writes into a form.
  const pause = Number(main.dataset.refresh);
  if (!pause) return;
  const waits = document.getElementById("waits");
  let seen = new Date();
  const clock = (time) => {
    const [date, rest] = time.toISOString().split("T");
    return (date === new Date().toISOString().slice(0, 10) ? "" : date + " ") + rest.slice(0, 8);
  };
  let shown = null;
  // Between the press of a button and its release the page must stay, or nothing was clicked.
  let pressed = false;
  addEventListener("pointerdown", (event) => { pressed = event.button === 0; });
  for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { pressed = false; });
  addEventListener("pointermove", (event) => { pressed &&= event.buttons !== 0; });
  const isBusy = () => {
    const at = document.activeElement;
    if (pressed) return true;
    const selection = document.getSelection();
    return (at && main.contains(at) && at.matches("input, select, textarea")) || (selection && !selection.isCollapsed);
  };
  // A link is known by where it leads, a button by what its form sends.
  const where = (element) => element && (element.getAttribute("href") || (element.form && element.form.outerHTML));
  const take = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const other = fresh.getElementById("main");
    if (!other) throw new Error("no page");
    if (other.innerHTML === shown) return;
    shown = other.innerHTML;
    const focused = main.contains(document.activeElement) ? where(document.activeElement) : null;
    const opened = [...main.querySelectorAll("details[open]")].map((each) => each.id);
    const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    main.replaceChildren(...other.childNodes);
    for (const id of opened) { const each = document.getElementById(id); if (each) each.open = true; }
    main.querySelectorAll(".scroll").forEach((each, place) => { each.scrollLeft = scrolled[place] || 0; });
    if (focused) {
      const again = [...main.querySelectorAll("a, button")].find((each) => where(each) === focused);
      if (again) again.focus({ preventScroll: true });
    }
    document.title = fresh.title;
    const cluster = fresh.querySelector(".cluster");
    if (cluster) document.querySelector(".cluster").textContent = cluster.textContent;
  };
  // Whoever has long been writing or selecting is told that the page has stood still.
  const tell = () => {
    waits.textContent = "Not kept fresh while you write or select: this is as of " + clock(seen) + " UTC.";
    waits.hidden = new Date() - seen < 3 * pause;
  };
  const refresh = async () => {
    if (document.visibilityState === "visible" && isBusy()) tell();
    else if (document.visibilityState === "visible") {
      waits.hidden = true;
      try {
        const response = await fetch(location.href, { cache: "no-store" });
        // The session is over.
        if (response.redirected) { location.reload(); return; }
        const text = await response.text();
        // Somebody may have begun meanwhile.
        if (!isBusy()) {
          take(text);
          seen = new Date();
        }
        lost.hidden = true;
      } catch {
        lost.textContent = "The console does not answer: this is as of " + clock(seen) + " UTC.";
        lost.hidden = false;
      }
    }
    setTimeout(refresh, pause);
  };
  setTimeout(refresh, pause);
})();
