// Keeps the page up to date: asks for it again, and changes only what is other than before. Without it all works by
// reloading.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const said = document.getElementById("refresh");
  if (!said) return;
  let paused = false, busy = false;

  const button = document.createElement("button");
  button.type = "button";
  const words = document.createElement("span");
  words.setAttribute("role", "alert");
  words.className = "tone bad";
  const name = () => { button.textContent = paused ? "Resume updates" : "Pause updates"; };
  button.addEventListener("click", () => { paused = !paused; name(); if (!paused) look(); });
  name();
  said.append(button, " ", words);

  const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") || node.id || null : null);

  const patchAttributes = (old, fresh) => {
    for (const { name } of [...old.attributes]) {
      // What the visitor has opened stays open.
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };

  // Makes `old` as `fresh` is. Elements with a key keep theirs, so that focus and selection stay where they are.
  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh.cloneNode(true)); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { old.nodeValue = fresh.nodeValue; return; }
    patchAttributes(old, fresh);
    const keyed = new Map();
    for (const child of old.childNodes) { const k = key(child); if (k !== null) keyed.set(k, child); }
    let at = old.firstChild;
    for (const want of fresh.childNodes) {
      const k = key(want);
      if (k !== null) {
        const have = keyed.get(k);
        if (!have) { old.insertBefore(want.cloneNode(true), at); continue; }
        keyed.delete(k);
        if (have === at) at = at.nextSibling; else old.insertBefore(have, at);
        patch(have, want);
      } else {
        while (at && key(at) !== null && at.nodeType === Node.ELEMENT_NODE && !keyed.has(key(at))) at = at.nextSibling;
        if (at && key(at) === null) { const next = at.nextSibling; patch(at, want); at = next; }
        else old.insertBefore(want.cloneNode(true), at);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
    for (const gone of keyed.values()) gone.remove();
  };

  const look = async () => {
    if (paused || busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "omit", redirect: "error" });
      if (!answer.ok) throw new Error(answer.status === 403 ? "you may no longer look" : `meshd answers ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      for (const old of document.querySelectorAll("[data-live]")) {
        // A part inside of another is changed with that one.
        if (old.parentElement.closest("[data-live]")) continue;
        const now = fresh.getElementById(old.id);
        if (now) patch(old, now);
      }
      document.title = fresh.title;
      words.textContent = "";
    } catch (error) {
      words.textContent = `not updated: ${error instanceof TypeError ? "the head does not answer" : error.message}`;
    } finally {
      busy = false;
    }
  };

  setInterval(look, EVERY_MS);
  document.addEventListener("visibilitychange", look);
})();
