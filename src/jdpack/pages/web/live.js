"use strict";
// While a run is working, the server says when something is posted, and this page updates itself in
// place. Nothing moves under the reader: the focus, open tables and scrolling stay as they are, and a
// screen reader hears about the state, not about every round. When the run is finished, the page
// reloads once; that page has no such script and may not connect anywhere.
(() => {
  const note = () => document.getElementById("live");
  let mark = note().dataset.mark;
  let busy = false;
  let wanted = mark;

  const say = (text) => {
    if (note().textContent !== text) note().textContent = text;
  };

  const sayState = () =>
    say(
      mark.startsWith("stopped-") || mark === "waiting-stopped"
        ? note().dataset.resumed
        : note().dataset.updates,
    );

  const morph = (old, next) => {
    if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) {
      old.replaceWith(document.importNode(next, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
      return;
    }
    if (old.id === "live" && next.id === "live") return; // keep what `say` said
    for (const { name } of [...old.attributes]) {
      const opened = old.nodeName === "DETAILS" && name === "open";
      if (!opened && !next.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const [before, after] = [[...old.childNodes], [...next.childNodes]];
    after.forEach((child, i) => {
      if (i < before.length) morph(before[i], child);
      else old.append(document.importNode(child, true));
    });
    for (const extra of before.slice(after.length)) extra.remove();
  };

  // Sections are matched by name, so a new one does not shift the others.
  const key = (part) => part.id || part.getAttribute("aria-labelledby") || part.nodeName;

  const takeOver = (next) => {
    for (const name of ["header.top", "footer"]) {
      morph(document.querySelector(name), next.querySelector(name));
    }
    const main = document.querySelector("main");
    const old = new Map([...main.children].map((part) => [key(part), part]));
    let place = null;
    for (const part of next.querySelector("main").children) {
      let mine = old.get(key(part));
      if (mine) morph(mine, part);
      else {
        mine = document.importNode(part, true);
        if (place) place.after(mine);
        else main.prepend(mine);
      }
      old.delete(key(part));
      place = mine;
    }
    for (const gone of old.values()) gone.remove();
    document.title = next.title;
  };

  const look = async () => {
    if (busy) return;
    busy = true;
    try {
      while (wanted !== mark) {
        const goal = wanted;
        const answer = await fetch(document.URL.split("#")[0], { cache: "no-store" });
        if (!answer.ok) throw new Error(`${answer.status}`);
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = next.getElementById("live");
        if (!fresh || (mark.startsWith("waiting-") && !fresh.dataset.mark.startsWith("waiting-"))) {
          location.reload();
          return;
        }
        takeOver(next);
        if (fresh.dataset.mark === mark && goal === wanted) break; // not newer: wait for the next
        mark = fresh.dataset.mark;
      }
      sayState();
    } catch {
      say(note().dataset.failed);
    } finally {
      busy = false;
    }
  };

  const follow = () => {
    const feed = new EventSource("live");
    feed.onopen = sayState;
    feed.onmessage = (event) => {
      wanted = event.data;
      look();
    };
    feed.onerror = () => {
      say(note().dataset.lost);
      if (feed.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
    };
  };
  follow();
})();
