// What pages do beyond links and forms: they load anew when the store changed, and a few keys lead about.
"use strict";

const BUSY = "input:focus, select:focus, textarea:focus, dialog[open]";
const scrolled = new Map();
let number = document.body.dataset.number;
let waiting = false;

function isBusy() {
  const main = document.querySelector("main");
  return document.hidden || !main || main.querySelector(BUSY) || String(getSelection()) !== "";
}

function refresh() {
  const live = document.querySelector("#live");
  if (!live) return;
  if (isBusy()) { waiting = true; return; }
  waiting = false;
  htmx.trigger(live, "scan");
}

function listen() {
  const sign = document.querySelector(".live");
  if (!sign || !document.querySelector("#live")) return;
  const source = new EventSource(`${document.body.dataset.root}/live`);
  source.addEventListener("open", () => { sign.classList.add("is-live"); sign.textContent = "live"; });
  source.addEventListener("error", () => { sign.classList.remove("is-live"); sign.textContent = "not connected"; });
  let isFirst = true;
  source.addEventListener("scan", (event) => {
    const isShown = isFirst && event.data === number;
    isFirst = false;
    number = event.data;
    if (!isShown) refresh();
  });
  addEventListener("pagehide", () => source.close());
}

document.addEventListener("visibilitychange", () => { if (waiting) refresh(); });
document.addEventListener("selectionchange", () => { if (waiting && !isBusy()) refresh(); });
document.body.addEventListener("htmx:beforeSwap", () => {
  document.querySelectorAll("[data-keep]").forEach((one) => scrolled.set(one.dataset.keep, [one.scrollLeft, one.scrollTop]));
  const focused = document.activeElement;
  scrolled.set("focus", focused && focused.closest("#live") ? focused.getAttribute("href") : null);
});
document.body.addEventListener("htmx:afterSettle", () => {
  document.querySelectorAll("[data-keep]").forEach((one) => {
    const [left, top] = scrolled.get(one.dataset.keep) || [0, 0];
    one.scrollTo(left, top);
  });
  const href = scrolled.get("focus");
  if (href) [...document.querySelectorAll("#live a")].find((one) => one.getAttribute("href") === href)?.focus({ preventScroll: true });
});

const PLACES = { o: "/", s: "/streams", c: "/consumers", v: "/volumes", e: "/events" };
let leads = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) { field.focus(); field.select(); event.preventDefault(); }
  } else if (leads && PLACES[event.key]) {
    location.href = document.body.dataset.root + PLACES[event.key];
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const link = document.querySelector(event.key === "ArrowLeft" ? "[rel=prev]" : "[rel=next]");
    if (link && !event.target.closest("[data-keep]")) link.click();
  }
  leads = event.key === "g";
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button && navigator.clipboard) {
    navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; });
  }
});

listen();
