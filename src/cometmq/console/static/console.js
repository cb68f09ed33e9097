// What a browser does by itself: live parts, charts, times in its zone, the palette, keys.
"use strict";

const part = () => document.querySelector("#live[data-live]");

// Live parts. The server says when there is something new; the page asks for itself and swaps its
// live part. It waits while somebody types there or has selected text, and while nobody looks.
function busy() {
  const live = part();
  const typing = live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  return document.hidden || typing || !document.getSelection().isCollapsed;
}

function refresh() {
  if (!part() || busy()) return;
  htmx.ajax("GET", location.href, {
    target: "#live", select: "#live", swap: "outerMorph", headers: { "X-Refresh": "1" },
  });
}

function listen() {
  const state = document.getElementById("live-state");
  if (!part() || !state) return;
  const events = new EventSource("/events");
  const show = (lost) => {
    state.textContent = lost ? state.dataset.lost : state.dataset.live;
    state.classList.toggle("lost", lost);
  };
  events.onopen = () => show(false);
  events.onerror = () => show(true);
  events.addEventListener("refresh", refresh);
  events.addEventListener("ended", () => { events.close(); location.reload(); });
  addEventListener("pagehide", () => events.close());
}

// Times are UTC in the page, and shown in the browser's zone.
function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const when = new Date(element.dateTime);
    const text = when.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
    // Only if it differs: a change would call this again.
    if (element.textContent !== text) element.textContent = text;
  }
}

// Times that somebody types are in the browser's zone.
function zones() {
  for (const input of document.querySelectorAll("input[data-zone]")) {
    input.value = String(-new Date().getTimezoneOffset());
  }
}

// New messages of a topic appear at the top of their table, as the server renders them.
const MAX_TAIL_ROWS = 300;
function tails() {
  const body = document.querySelector("tbody[data-tail]");
  if (!body) return;
  const state = document.querySelector("[data-tail-state]");
  const pause = document.querySelector("[data-tail-pause]");
  const say = (what, more = "") => { state.textContent = more || state.dataset[what]; };
  const source = new EventSource(body.dataset.tail);
  const paused = () => pause.getAttribute("aria-pressed") === "true";
  source.onopen = () => say(paused() ? "paused" : "live");
  source.onerror = () => say("lost");
  source.addEventListener("rows", (event) => {
    if (paused()) return;
    say("live");
    body.insertAdjacentHTML("afterbegin", event.data);
    while (body.rows.length > MAX_TAIL_ROWS) body.lastElementChild.remove();
  });
  source.addEventListener("skipped", () => { if (!paused()) say("skipped"); });
  source.addEventListener("failed", (event) => say("lost", event.data));
  source.addEventListener("ended", () => { source.close(); location.reload(); });
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!paused()));
    say(paused() ? "paused" : "live");
  });
  addEventListener("pagehide", () => source.close());
}

// Charts.
function charts(root) {
  for (const figure of root.querySelectorAll("figure.chart")) {
    const plot = figure.querySelector(".plot");
    const points = figure.dataset.points;
    if (plot.drawn === points) continue;
    plot.drawn = points;
    if (plot.chart) {
      plot.chart.setData(JSON.parse(points));
      continue;
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const names = JSON.parse(figure.dataset.names);
    plot.chart = new uPlot({
      width: plot.clientWidth, height: plot.clientHeight - 32, axes: [axis, { ...axis, size: 64 }], cursor: { y: false },
      scales: { y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] } },
      series: [{}, ...names.map((label, index) => ({ label, stroke: colour(`--series-${(index % 4) + 1}`), width: 2 }))],
    }, JSON.parse(points), plot);
  }
}

// The palette finds pages at once, and topics and groups at the server.
function palette() {
  const dialog = document.getElementById("palette");
  const input = document.getElementById("palette-input");
  const list = document.getElementById("palette-list");
  let chosen = 0;
  let asked = 0;
  const pages = [...document.querySelectorAll("#menu a")].map((a) => ({ name: a.textContent, url: a.getAttribute("href") }));
  const show = (found) => {
    list.replaceChildren(...found.map((entry, index) => {
      const item = document.createElement("li");
      item.role = "option";
      item.textContent = entry.name;
      item.dataset.url = entry.url;
      item.ariaSelected = String(index === chosen);
      item.onclick = () => location.assign(entry.url);
      return item;
    }));
  };
  const find = async () => {
    const text = input.value.trim().toLowerCase();
    const mine = ++asked;
    chosen = 0;
    const found = pages.filter((page) => page.name.toLowerCase().includes(text));
    show(found);
    if (!text) return;
    const answer = await fetch(`/find?${new URLSearchParams({ q: text })}`);
    if (mine === asked && answer.ok) show([...found, ...await answer.json()]);
  };
  input.addEventListener("input", find);
  dialog.addEventListener("keydown", (event) => {
    const items = [...list.children];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : items.length - 1)) % Math.max(items.length, 1);
      items.forEach((item, index) => { item.ariaSelected = String(index === chosen); });
      items[chosen]?.scrollIntoView({ block: "nearest" });
      event.preventDefault();
    } else if (event.key === "Enter" && items[chosen]) {
      location.assign(items[chosen].dataset.url);
    }
  });
  const open = () => { input.value = ""; find(); dialog.showModal(); };
  document.getElementById("palette-button")?.addEventListener("click", open);
  return open;
}

function keys(openPalette) {
  let before = "";
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); openPalette(); }
    if (before === "g") document.querySelector(`#menu a[data-key="${CSS.escape(event.key)}"]`)?.click();
    before = event.key;
  });
}

addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  charts(document);
  zones();
  tails();
  if (!document.getElementById("menu")) return;
  listen();
  keys(palette());
  const button = document.getElementById("menu-button");
  button.addEventListener("click", () => {
    const isOpen = document.getElementById("menu").classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  new MutationObserver(() => { localTimes(document); charts(document); })
    .observe(document.getElementById("main"), {
      childList: true, subtree: true, attributes: true, attributeFilter: ["data-points", "datetime"],
    });
});
