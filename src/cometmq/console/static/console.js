// What a browser does by itself: live parts, charts, times in its zone, the palette, keys.
"use strict";

const part = () => document.querySelector("#live[data-live]");

// Live parts. The server says when there is something new; the page asks for itself and swaps its
// live part. It waits while somebody types there or has selected text, and while nobody looks.
let paused = false; // by a key

function busy() {
  if (paused) return true;
  const active = document.activeElement;
  const typing = part().contains(active) && active.matches("input, select, textarea");
  return document.hidden || typing || isChanged() || !document.getSelection().isCollapsed;
}

// What somebody has chosen there and not sent yet: the swap would put it into whatever row comes to
// lie at its place.
function isChanged() {
  return [...part().querySelectorAll("input:not([type=hidden]), select, textarea")].some((field) => {
    if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
    if (!field.matches("select")) return field.value !== field.defaultValue;
    return field.selectedIndex !== Math.max([...field.options].findIndex((option) => option.defaultSelected), 0);
  });
}

async function refresh() {
  if (!part() || busy()) return;
  const before = part().contains(document.activeElement) ? document.activeElement : null;
  await htmx.ajax("GET", location.href, {
    target: "#live", select: "#live", swap: "outerMorph", headers: { "X-Refresh": "1" },
  });
  // The focus stays on its row when the row is drawn again.
  if (before && !before.isConnected && document.activeElement === document.body) {
    const same = (one) => one.outerHTML === before.outerHTML;
    [...part()?.querySelectorAll(before.tagName) ?? []].find(same)?.focus({ preventScroll: true });
  }
}

let showLive = () => {};

// While the answer is under way, the user may begin to choose or to type.
addEventListener("htmx:before:swap", (event) => {
  if (!event.detail.ctx.request?.headers?.["X-Refresh"] || !part() || !busy()) return;
  event.preventDefault();
  showLive();
});

function listen() {
  const state = document.getElementById("live-state");
  if (!part() || !state) return;
  let events = null;
  let lost = true;
  showLive = () => {
    const name = lost ? "lost" : paused ? "stopped" : isChanged() ? "paused" : "live";
    if (state.dataset.state === name) return;
    state.dataset.state = name;
    state.textContent = state.dataset[name];
    state.classList.toggle("lost", lost);
  };
  const show = (isLost) => { lost = isLost; showLive(); };
  const close = () => { events?.close(); events = null; };
  const open = () => {
    if (events || document.hidden) return;
    events = new EventSource("/events");
    events.onopen = () => show(false);
    events.onerror = () => {
      show(true);
      // The browser connects again by itself, unless it was refused: because the session has ended,
      // for example. The page's next request then leads to the login.
      if (events.readyState === EventSource.CLOSED) { close(); refresh(); setTimeout(open, 15000); }
    };
    events.addEventListener("refresh", () => { show(false); refresh(); });
    events.addEventListener("ended", () => { close(); location.reload(); });
  };
  // A browser has six connections to the console for all of its tabs together. A tab that nobody sees
  // gives its connection back, or the seventh would wait for ever.
  addEventListener("visibilitychange", () => { if (document.hidden) close(); else { open(); refresh(); } });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

// To the ms, and in the order in which they are sorted.
function precise(when) {
  const local = new Date(when.getTime() - when.getTimezoneOffset() * 60000);
  return local.toISOString().replace("T", " ").replace("Z", "");
}

// Times are UTC in the page, and shown in the browser's zone.
function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const when = new Date(element.dateTime);
    // The Swedish form is that of ISO 8601: short, the same in all languages, and it sorts.
    const text = element.closest(".precise") ? precise(when) : when.toLocaleString("sv-SE");
    // Only if it differs: a change would call this again.
    if (element.textContent !== text) element.textContent = text;
  }
}

// Tables with many columns become cards on a narrow screen; each cell then says its column.
function cards(root) {
  for (const table of root.querySelectorAll(".table > table")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    if (heads.length < 4) continue;
    shorten(table);
    // For a screen reader a table that is drawn as blocks is no table any more, unless it says so.
    table.dataset.cards = "";
    table.role = "table";
    for (const row of table.querySelectorAll("tbody tr")) {
      row.role = "row";
      [...row.cells].forEach((cell, index) => {
        cell.role = cell.tagName === "TH" ? "rowheader" : "cell";
        if (cell.colSpan === 1) cell.dataset.label = heads[index] ?? "";
      });
    }
  }
}

// On a narrow screen a long list of cards shows its first ones; a button shows the others. Rows that
// can be chosen all stay, so that nobody acts on hidden rows.
const CARDS = 12;
function shorten(table) {
  const isLong = table.tBodies[0]?.rows.length > CARDS && !table.querySelector("tbody input");
  const next = table.parentElement.nextElementSibling;
  const button = next?.matches(".more-rows") ? next : null;
  if (!isLong || table.isWhole) {
    button?.remove();
    return;
  }
  if (!("short" in table.dataset)) table.dataset.short = "";
  if (button) return;
  const made = document.createElement("button");
  made.type = "button";
  made.className = "more-rows";
  made.textContent = document.getElementById("main").dataset.more;
  made.onclick = () => { table.isWhole = true; delete table.dataset.short; made.remove(); };
  table.parentElement.after(made);
}

// A date that somebody types is in the browser's zone, as those that pages show. It is sent with its
// distance to UTC on that day, so that an address means the same to a colleague elsewhere.
const DATE = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?$/;
function zoned(text) {
  const [, day, time = "00:00"] = DATE.exec(text.trim()) ?? [];
  const minutes = -Math.round(new Date(`${day}T${time}`).getTimezoneOffset());
  if (!day || Number.isNaN(minutes)) return text;
  const two = (number) => String(Math.trunc(number)).padStart(2, "0");
  const distance = Math.abs(minutes);
  return `${day} ${time}${minutes < 0 ? "-" : "+"}${two(distance / 60)}:${two(distance % 60)}`;
}

addEventListener("submit", (event) => {
  for (const input of event.target.querySelectorAll("input[data-time]")) input.value = zoned(input.value);
});

// New messages of a topic appear at the top of their table, as the server renders them.
const MAX_TAIL_ROWS = 300;
function tails() {
  const body = document.querySelector("tbody[data-tail]");
  if (!body) return;
  const state = document.querySelector("[data-tail-state]");
  const pause = document.querySelector("[data-tail-pause]");
  const say = (what, more = "") => { state.textContent = more || state.dataset[what]; };
  const paused = () => pause.getAttribute("aria-pressed") === "true";
  let source = null;
  let last = body.dataset.tail;
  const close = () => { source?.close(); source = null; };
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(last);
    source.onopen = () => say(paused() ? "paused" : "live");
    source.onerror = () => {
      say("lost");
      if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, 15000); }
    };
    source.addEventListener("rows", (event) => {
      // A tab that comes back goes on where it was.
      const address = new URL(last, location.href);
      address.searchParams.set("cursor", event.lastEventId);
      last = address.pathname + address.search;
      if (paused()) return;
      say("live");
      body.insertAdjacentHTML("afterbegin", event.data);
      while (body.rows.length > MAX_TAIL_ROWS) body.lastElementChild.remove();
    });
    source.addEventListener("skipped", () => { if (!paused()) say("skipped"); });
    source.addEventListener("failed", (event) => say("lost", event.data));
    source.addEventListener("ended", () => { close(); location.reload(); });
  };
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!paused()));
    say(paused() ? "paused" : "live");
  });
  // See `listen`: a tab that nobody sees gives its connection back.
  addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

// Charts. Times stand at steps of these, in seconds. None is more than twice the one before, so that
// even a narrow chart has two of them.
const STEPS = [1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600];
const labelSpace = (u, axis, low, high, width) => Math.min(Math.max(width / 4, 56), 90);
function timeLabels(u, splits) {
  const short = u.scales.x.max - u.scales.x.min < 600;
  return splits.map((seconds) => new Date(seconds * 1000).toLocaleTimeString("sv-SE").slice(0, short ? 8 : 5));
}

function shortNumber(value) {
  // The steps of a small axis are quarters.
  return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: value < 1 ? 2 : 1 });
}

function charts(root) {
  for (const figure of root.querySelectorAll("figure.chart")) {
    const plot = figure.querySelector(".plot");
    const points = figure.dataset.points;
    if (plot.drawn === points) continue;
    plot.drawn = points;
    if (plot.chart) {
      plot.chart.setData(JSON.parse(points));
      newest(plot.chart);
      continue;
    }
    draw(figure, plot, JSON.parse(points));
  }
}

// While nobody points at a chart, its legend shows the newest values.
function newest(chart) {
  if (chart.cursor.left < 0) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
}

function draw(figure, plot, points) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const names = JSON.parse(figure.dataset.names);
  const size = () => ({ width: Math.max(plot.clientWidth, 100), height: Math.max(plot.clientHeight - 32, 80) });
  plot.chart = new uPlot({
    // Room for half of the last time at the axis.
    ...size(), padding: [null, 32, null, null], cursor: { y: false }, hooks: { setLegend: [newest] },
    axes: [{ ...axis, values: timeLabels, incrs: STEPS, space: labelSpace }, { ...axis, size: 56, values: (u, splits) => splits.map(shortNumber) }],
    scales: {
      // For a single point uPlot gives a whole day.
      x: { range: (u, first, last) => u.data[0].length < 2 ? [first - 60, first + 60] : [first, last] },
      y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] },
    },
    series: [
      { label: figure.dataset.time ?? "", value: (u, seconds) => seconds == null ? "" : timeLabels(u, [seconds])[0] },
      ...names.map((label, index) => ({ label, stroke: colour(`--series-${(index % 4) + 1}`), width: 2, points: { show: points[0].length < 2 } })),
    ],
  }, points, plot);
  newest(plot.chart);
  plot.resizing?.disconnect();
  plot.resizing = new ResizeObserver(() => plot.chart.setSize(size()));
  plot.resizing.observe(figure);
}

// The theme may change while a page is open.
function redraw() {
  for (const figure of document.querySelectorAll("figure.chart")) {
    const plot = figure.querySelector(".plot");
    plot.chart?.destroy();
    plot.chart = plot.drawn = null;
  }
  charts(document);
}

// The palette finds pages at once, and topics, groups and brokers at the server.
const QUIET_MS = 120;

function palette() {
  const dialog = document.getElementById("palette");
  const input = document.getElementById("palette-input");
  const list = document.getElementById("palette-list");
  const state = document.getElementById("palette-state");
  let chosen = 0;
  let asking = null;
  let timer = 0;
  const pages = [...document.querySelectorAll("#menu a")].map((a) => ({ name: a.textContent, url: a.getAttribute("href") }));
  const choose = (index) => {
    const items = [...list.children];
    chosen = items.length ? (index + items.length) % items.length : 0;
    items.forEach((item, at) => { item.ariaSelected = String(at === chosen); });
    items[chosen]?.scrollIntoView({ block: "nearest" });
    if (items.length) input.setAttribute("aria-activedescendant", items[chosen].id);
    else input.removeAttribute("aria-activedescendant");
  };
  const show = (found) => {
    list.replaceChildren(...found.map((entry, index) => {
      const item = document.createElement("li");
      item.id = `palette-${index}`;
      item.role = "option";
      item.textContent = entry.name;
      item.dataset.url = entry.url;
      item.onclick = () => location.assign(entry.url);
      return item;
    }));
    choose(0);
  };
  const ask = async (text, found) => {
    asking = new AbortController();
    try {
      const answer = await fetch(`/find?${new URLSearchParams({ q: text })}`, { signal: asking.signal });
      if (!answer.ok) throw new Error(String(answer.status));
      const all = [...found, ...await answer.json()];
      show(all);
      state.textContent = all.length ? "" : state.dataset.none;
    } catch (error) {
      if (error.name !== "AbortError") state.textContent = state.dataset.lost;
    }
  };
  const find = () => {
    const text = input.value.trim();
    asking?.abort();
    clearTimeout(timer);
    const found = pages.filter((page) => page.name.toLowerCase().includes(text.toLowerCase()));
    show(found);
    state.textContent = "";
    if (text) timer = setTimeout(ask, QUIET_MS, text, found);
  };
  input.addEventListener("input", find);
  dialog.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
      event.preventDefault();
    } else if (event.key === "Enter" && list.children[chosen]) {
      location.assign(list.children[chosen].dataset.url);
    }
  });
  const open = () => {
    if (dialog.open) return;
    input.value = "";
    find();
    dialog.showModal();
  };
  document.getElementById("palette-button").addEventListener("click", open);
  return open;
}

// An input proposes the names that the server finds for what is in it.
function proposes(input) {
  const list = document.body.appendChild(document.createElement("datalist"));
  list.id = `names-${document.querySelectorAll("datalist").length}`;
  input.setAttribute("list", list.id);
  const kind = input.dataset.names;
  let timer = 0;
  let asked = null;
  const ask = async () => {
    // The ids of messages are those of the topic beside them.
    const topic = input.form.elements.namedItem("topic")?.value.trim() ?? "";
    const path = kind === "messages"
      ? `/propose/messages?${new URLSearchParams({ topic })}`
      : `/propose?${new URLSearchParams({ kind, q: input.value.trim() })}`;
    if (path === asked) return;
    asked = path;
    try {
      const answer = await fetch(path);
      const names = answer.ok ? await answer.json() : [];
      // An answer to an older text comes too late.
      if (path === asked) list.replaceChildren(...names.map((name) => new Option("", name)));
    } catch {
      asked = null; // no names: an input takes every text
    }
  };
  input.addEventListener("focus", ask);
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, QUIET_MS);
  });
  if (document.activeElement === input) ask();
}

// Chooses all rows of a list, or none.
function chooseAll() {
  // One in the heading of the table, and one above its cards.
  const alls = [...document.querySelectorAll("input[data-all]")];
  if (!alls.length) return;
  const { form, dataset } = alls[0];
  const boxes = [...form.querySelectorAll(`input[type=checkbox][name="${CSS.escape(dataset.all)}"]`)];
  const show = () => {
    const chosen = boxes.filter((box) => box.checked).length;
    for (const all of alls) {
      all.checked = chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
    }
  };
  for (const all of alls) {
    (all.closest("label") ?? all).hidden = false;
    all.addEventListener("change", () => boxes.forEach((box) => { box.checked = all.checked; }));
  }
  form.addEventListener("change", show);
  // A browser that goes back shows what was chosen.
  addEventListener("pageshow", show);
}

// Moves the focus among the rows of a list, by the first link or button of each.
function step(direction) {
  const rows = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a, button")).filter(Boolean);
  const at = rows.findIndex((link) => link.closest("tr").contains(document.activeElement));
  rows[at < 0 ? (direction > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + direction, 0), rows.length - 1)]?.focus();
}

function keys(openPalette) {
  const dialog = document.getElementById("keys");
  const works = document.getElementById("keys-on");
  // Users that speak to the browser, or type by accident, can turn off keys that are a single letter.
  works.checked = localStorage.getItem("cometmq-keys") !== "off";
  works.addEventListener("change", () => localStorage.setItem("cometmq-keys", works.checked ? "on" : "off"));
  document.getElementById("keys-button").addEventListener("click", () => dialog.showModal());
  const does = {
    "/": openPalette,
    "?": () => dialog.showModal(),
    "f": () => document.querySelector("form.search input[type=search]")?.focus(),
    "j": () => step(1),
    "k": () => step(-1),
    "n": () => document.querySelector(".pager a[rel=next]")?.click(),
    "p": () => document.querySelector(".pager a[rel=prev]")?.click(),
    ".": () => { paused = !paused; showLive(); refresh(); },
  };
  let before = "";
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !works.checked) return;
    if (document.querySelector("dialog[open]")) return;
    if (before === "g") {
      document.querySelector(`#menu a[data-key="${CSS.escape(event.key)}"]`)?.click();
      before = "";
      return;
    }
    before = event.key;
    if (does[event.key]) {
      event.preventDefault();
      does[event.key]();
    }
  });
}

// An open menu closes when the user goes on elsewhere.
function closing() {
  const account = document.querySelector("details.account");
  addEventListener("click", (event) => {
    if (!account.contains(event.target)) account.open = false;
    if (event.target.matches("dialog")) event.target.close();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && account.open) {
      account.open = false;
      account.querySelector("summary").focus();
    }
  });
}

addEventListener("DOMContentLoaded", () => {
  const arrange = () => { localTimes(document); cards(document); charts(document); };
  arrange();
  tails();
  chooseAll();
  document.querySelectorAll("input[data-names]").forEach(proposes);
  if (!document.getElementById("menu")) return;
  listen();
  keys(palette());
  closing();
  const button = document.getElementById("menu-button");
  button.addEventListener("click", () => {
    const isOpen = document.getElementById("menu").classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(arrange)
    .observe(document.getElementById("main"), {
      childList: true, characterData: true, subtree: true, attributes: true, attributeFilter: ["data-points", "datetime"],
    });
});
