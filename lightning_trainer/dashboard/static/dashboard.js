// Times as the reader's own, pages that follow the daemon, lines that can be copied, steps chosen by dragging.
// Everything is readable without it.
(() => {
  const times = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.valueOf())) {
        time.textContent = at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      }
    }
    for (const button of root.querySelectorAll("pre.copy")) {
      if (button.querySelector("button")) continue;
      const text = button.textContent;
      const copy = document.createElement("button");
      copy.type = "button";
      copy.className = "quiet copies";
      copy.textContent = "Copy";
      copy.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Select it and press Ctrl-C";
        }
      });
      button.append(copy);
    }
  };
  times(document);

  // Not while a user types or has opened something: the page would change under their hands.
  const busy = (main) => main.contains(document.activeElement) && document.activeElement.matches("input,select,textarea");
  const main = document.querySelector("main[data-follow]");
  const state = document.getElementById("live-state");
  let last = 0;
  let waiting = null;
  const renew = async () => {
    waiting = null;
    if (document.hidden || busy(main)) return;
    last = Date.now();
    const answer = await fetch(location.href, { headers: { accept: "text/html", "x-renewed-page": "1" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (busy(main)) return;
    const fresh = page.querySelector("main[data-follow]");
    if (!fresh) return;
    times(fresh);
    // What was just done stays said; put in anew, a screen reader would say it again.
    const said = main.querySelector(":scope > .said");
    fresh.querySelector(":scope > .said")?.remove();
    for (const old of [...main.childNodes]) if (old !== said) old.remove();
    main.append(...fresh.childNodes);
    main.dataset.renewed = String(Number(main.dataset.renewed ?? 0) + 1);
  };
  if (main && state && window.EventSource) {
    const events = new EventSource("/events");
    // The daemon says how long to leave between two looks; where many pages are open they do not all come at once.
    events.addEventListener("changed", (event) => {
      const pace = Number(event.data);
      const spread = Math.random() * Math.max(0, pace - 3000);
      waiting ??= setTimeout(() => renew().catch(() => {}), Math.max(spread, last + pace - Date.now()));
    });
    events.addEventListener("open", () => {
      // What changed while nothing was heard is not said again.
      if (state.classList.contains("lost")) renew().catch(() => {});
      state.textContent = "live";
      state.classList.remove("lost");
    });
    events.addEventListener("error", () => {
      state.textContent = "no answer";
      state.classList.add("lost");
    });
    document.addEventListener("visibilitychange", () => document.hidden || renew().catch(() => {}));
  }

  // A drag over a chart chooses steps: the x axis is the same in all of them.
  let from = null;
  const step = (event) => {
    const svg = event.target.closest?.(".chart svg");
    const hit = event.target.closest?.(".hit");
    const named = svg && hit?.querySelector("title")?.textContent.match(/^step (\d+)/);
    return named ? Number(named[1]) : null;
  };
  document.addEventListener("pointerdown", (event) => {
    from = step(event);
  });
  document.addEventListener("pointerup", (event) => {
    const to = step(event);
    if (from !== null && to !== null && to !== from) {
      const address = new URL(location.href);
      address.searchParams.set("first", String(Math.min(from, to)));
      address.searchParams.set("last", String(Math.max(from, to)));
      location.assign(address);
    }
    from = null;
  });
})();
