// What pages do by themselves: refresh, keys, marks on charts, times that go on. Everything works without this script.
"use strict";

const body = document.body;
const base = body.dataset.base;
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- times: relative ones go on by themselves, as formats.py writes them ---

const shown = (seconds) => {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [size, unit, smaller, name] = whole >= 86400 ? [86400, "d", 3600, "h"] : whole >= 3600 ? [3600, "h", 60, "min"] : [60, "min", 1, "s"];
  const rest = Math.floor((whole % size) / smaller);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
};

// The clock of the server decides: that of this machine may be wrong.
let ahead = 0;
const setClock = (root) => {
  const read = $("footer time", root);
  if (read) ahead = Date.now() - Date.parse(read.getAttribute("datetime"));
};
const passTime = () => {
  const now = Date.now() - ahead;
  for (const one of $$("main time[datetime]")) {
    if (!/ ago$|^in /.test(one.textContent)) continue;
    const seconds = (now - Date.parse(one.getAttribute("datetime"))) / 1000;
    // Below a minute by whole seconds: tenths that run would only distract.
    const text = Math.abs(seconds) < 60 ? `${Math.floor(Math.abs(seconds))} s` : shown(Math.abs(seconds));
    const next = seconds >= 0 ? `${text} ago` : `in ${text}`;
    if (one.textContent !== next) one.textContent = next;
  }
};
setClock(document);
setInterval(() => document.hidden || paused() || passTime(), 1000);

// --- the time zone of this browser, which the server is told by its name ---

const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
const enhance = () => {
  for (const button of $$(".zones .local")) {
    button.hidden = false;
    button.value = here || "UTC";
    const chosen = $(".zone-now")?.textContent;
    button.setAttribute("aria-pressed", String(chosen === here));
    if (chosen === here) $(".zone-now").hidden = true;
  }
  if (navigator.clipboard) for (const button of $$(".copy")) button.hidden = false;
};
enhance();

document.addEventListener("click", async (event) => {
  const copy = event.target.closest(".copy");
  if (!copy) return;
  await navigator.clipboard.writeText(copy.dataset.copy);
  copy.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy id"), 1500);
});

// --- forms: each is sent once, however often its button is clicked ---

// If no other page has come after so long, the request was stopped, or its answer is none.
const ANSWERED = 10000;
const sent = new Map();
const forget = (form) => {
  clearTimeout(sent.get(form));
  sent.delete(form);
  for (const button of $$("button", form)) button.disabled = false;
};
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (sent.has(form)) return event.preventDefault();
  sent.set(form, setTimeout(() => forget(form), ANSWERED));
  // Later: a button that is disabled already would not be sent.
  setTimeout(() => sent.has(form) && $$("button", form).forEach((button) => (button.disabled = true)));
});
// A page that comes back by the history has its forms again.
addEventListener("pageshow", () => [...sent.keys()].forEach(forget));

// What a change has done is said once, and not again when the page is read again or its address is sent to somebody.
const address = new URL(location.href);
if (address.searchParams.has("notice")) {
  address.searchParams.delete("notice");
  address.searchParams.delete("due");
  history.replaceState(history.state, "", address);
}

// --- selections: what is offered is what at least one of the selected chains can be changed by ---

const offer = () => {
  const statuses = $$("input[data-status]:checked").map((one) => one.dataset.status);
  for (const button of $$("button[data-for]")) {
    button.disabled = statuses.length > 0 && !button.dataset.for.split(" ").some((one) => statuses.includes(one));
  }
};
document.addEventListener("change", (event) => event.target.matches("input[data-status]") && offer());
// A page that comes back by the history has its selection again.
addEventListener("pageshow", offer);

// --- marks on charts ---

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
body.append(tip);
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-tip]");
  tip.hidden = !mark;
  if (!mark) return;
  if (tip.textContent !== mark.dataset.tip) tip.textContent = mark.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
});

// --- refreshing: nothing moves under the pointer, and paused means paused ---

const SHORTEST = 5000;
const LONGEST = 60000;
const SELDOM = 30000;
const SECOND = 1000;
const PAUSED = "queuert-paused";
const live = $(".live");
const mode = body.dataset.live;
const main = $("#main");
let source = null;
// There is one timer of each kind at most: it is cleared before it is set.
let nextRead = null;
let nextStream = null;
let nextAgain = null;
let pause = SHORTEST;
let streamPause = SHORTEST;
let reading = false;
let readAt = -SECOND;
let failed = "";

const paused = () => !mode || sessionStorage.getItem(PAUSED) === "yes";

const tell = (state, text) => {
  if (!live) return;
  live.hidden = false;
  live.dataset.state = state;
  const label = $(".live-text", live);
  if (label.textContent !== text) label.textContent = text;
  const button = $(".live-button", live);
  button.textContent = paused() ? "Resume" : "Pause";
  button.setAttribute("aria-pressed", String(paused()));
};

// How the page is refreshed now. A failure says something else until the next success.
const tellState = () => {
  if (paused()) return tell("off", "Paused");
  if (mode === "poll") return tell("polling", `Refreshing every ${pause / 1000} s`);
  if (!source) return tell("polling", "Refreshing now and then");
  return source.readyState === EventSource.OPEN ? tell("live", "Live") : tell("lost", "Connecting again");
};

const inside = (region) => {
  const selection = document.getSelection();
  return region.matches(":hover") || (region.contains(document.activeElement) && document.activeElement !== main)
    || (selection && !selection.isCollapsed && selection.containsNode(region, true));
};

// What a reader has opened, typed or chosen stays. Hidden fields are no reader's: they say what a form changes.
const OWN = ["checked", "value", "hidden", "aria-pressed"];
const keep = {
  morphStyle: "innerHTML",
  ignoreActiveValue: true,
  callbacks: {
    beforeAttributeUpdated: (name, node) =>
      node.matches("input[type=hidden]")
      || !(OWN.includes(name) || (name === "open" && node.tagName === "DETAILS")
        || (name === "class" && node.classList.contains("chosen"))),
    beforeNodeMorphed: (node) => !node.matches?.("textarea, select, input:not([type=hidden])"),
  },
};

const rows = (region) => $$("[data-row]", region);

// What stands where: rows by their ids, buttons by their words, other parts by the first link in them. Not the values of
// charts, which go on as their pictures do.
const shape = (region) =>
  $$("tr, p, li, .name, .node, h2, button, a.button", region)
    .filter((one) => !one.closest(".values"))
    .map((one) => {
      const words = one.matches("button, a.button") && one.textContent;
      const link = one.getAttribute("href") ?? $("a[href]", one)?.getAttribute("href");
      return `${one.tagName} ${one.id || words || link || ""}`;
    })
    .join("\n");

const showNew = (region, count, apply) => {
  let bar = region.previousElementSibling;
  if (!bar?.classList.contains("new-rows")) {
    bar = document.createElement("div");
    bar.className = "new-rows";
    bar.append(Object.assign(document.createElement("button"), { type: "button" }));
    region.before(bar);
  }
  const button = bar.firstElementChild;
  button.textContent = count ? `${count} new` : `The ${region === main ? "page" : "list"} has changed`;
  button.onclick = () => {
    bar.remove();
    apply();
    region.focus({ preventScroll: true });
  };
};

const hideNew = (region) => {
  const bar = region.previousElementSibling;
  if (bar?.classList.contains("new-rows")) bar.remove();
};

const replace = (region, fresh) => Idiomorph.morph(region, fresh.innerHTML, keep);

// Each row in its place: what it says, not where it is.
const updateRows = (region, fresh) => {
  const known = new Map($$("tr[id]", region).map((row) => [row.id, row]));
  for (const row of $$("tr[id]", fresh)) {
    const old = known.get(row.id);
    if (old && (shape(old) === shape(row) || !inside(old))) Idiomorph.morph(old, row.innerHTML, keep);
  }
};

const updateList = (region, fresh) => {
  const known = rows(region).map((row) => row.id);
  const next = rows(fresh).map((row) => row.id);
  const added = next.filter((id) => !known.includes(id)).length;
  const gone = known.length - (next.length - added);
  const moved = next.join("\n") !== known.join("\n");
  const flows = region.closest("[data-flows]") && !inside(region) && scrollY < 200;
  if (flows || !known.length || !moved || (!added && !gone && !inside(region))) {
    replace(region, fresh);
    hideNew(region);
    return;
  }
  updateRows(region, fresh);
  showNew(region, added, () => replace(region, fresh));
};

const update = (page) => {
  const regions = (root) => new Map($$("[data-region]", root).map((region) => [region.dataset.region, region]));
  const old = regions(document);
  const next = regions(page);
  if ([...old.keys()].sort().join("\n") !== [...next.keys()].sort().join("\n")) {
    // A part has come or is gone: the page has another form now.
    const change = () => replace(main, page.getElementById("main"));
    if (!inside(main)) {
      hideNew(main);
      return change();
    }
    showNew(main, 0, change);
  } else hideNew(main);
  for (const [name, fresh] of next) {
    const region = old.get(name);
    if (!region) continue;
    if (name === "list") updateList(region, fresh);
    else if (shape(region) === shape(fresh) || !inside(region)) replace(region, fresh);
    else updateRows(region, fresh);
  }
};

// What a page says, without what is another in each answer: times that go on, pictures of them, and fields that nobody
// sees.
const saying = (page) => {
  const copy = page.getElementById("main").cloneNode(true);
  for (const one of $$("time, [data-age], svg, input[type=hidden], .notice", copy)) one.remove();
  return copy.innerHTML;
};
let said = "";

// What a notice says is over when the page has changed since, but it is shown for so long at least.
const SHOWN = 8000;
let over = false;

const read = async () => {
  if (paused() || document.hidden || failed) return;
  // Never more often than once in a second: all that ask too early get the next one.
  const early = reading ? SECOND : readAt + SECOND - performance.now();
  if (early > 0) {
    nextAgain ??= setTimeout(() => {
      nextAgain = null;
      read();
    }, early);
    return;
  }
  let answered = false;
  reading = true;
  readAt = performance.now();
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    if (answer.redirected || answer.status === 401 || answer.status === 403) {
      stop();
      tell("lost", "The session has ended: read the page again");
      failed = "session";
      return;
    }
    const text = await answer.text();
    if (answer.status >= 400 && answer.status < 500 && ![404, 408, 429].includes(answer.status)) {
      // It would be refused again.
      stop();
      tell("lost", "The request was refused: read the page again");
      failed = "refused";
      return;
    }
    answered = true;
    if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(text, "text/html");
    if (paused()) return;
    const says = saying(page);
    setClock(page);
    if (answer.status === 404) replace(main, page.getElementById("main"));
    else update(page);
    passTime();
    enhance();
    offer();
    over ||= said !== "" && says !== said;
    if (over && performance.now() > SHOWN) $(".notice")?.remove();
    pause = says === said ? Math.min(pause * 2, LONGEST) : SHORTEST;
    said = says;
    tellState();
  } catch {
    pause = Math.min(pause * 2, LONGEST);
    tell("lost", answered ? "The server answers with an error" : "The server does not answer");
  } finally {
    reading = false;
  }
};

// Not all that a page shows is in the event log, so pages with a stream read themselves, too: pauses, heartbeats, and
// types whose events are off.
const plan = () => {
  clearTimeout(nextRead);
  nextRead = setTimeout(async () => {
    await read();
    if (nextRead !== null && !failed) plan();
  }, source?.readyState === EventSource.OPEN ? SELDOM : pause);
};

const stop = () => {
  source?.close();
  source = null;
  clearTimeout(nextRead);
  clearTimeout(nextStream);
  clearTimeout(nextAgain);
  nextRead = nextStream = nextAgain = null;
};

const listen = () => {
  clearTimeout(nextStream);
  nextStream = null;
  const chain = body.dataset.chain;
  const opening = new EventSource(`${base}/live${chain ? `?chain=${encodeURIComponent(chain)}` : ""}`);
  source = opening;
  opening.addEventListener("ready", () => {
    streamPause = SHORTEST;
    tellState();
    plan();
    // Nobody knows what has happened since the page was read, or since the stream was lost.
    read();
  });
  opening.addEventListener("changed", read);
  opening.onerror = () => {
    if (source !== opening) return;
    if (opening.readyState === EventSource.CLOSED) {
      // The answer was no stream, such as the error of a proxy: the browser does not try again by itself.
      source = null;
      clearTimeout(nextStream);
      nextStream = setTimeout(listen, streamPause);
      streamPause = Math.min(streamPause * 2, LONGEST);
      plan();
    }
    tellState();
  };
};

const begin = () => {
  stop();
  if (!mode || failed) return;
  if (paused()) return tellState();
  if (document.hidden) return;
  if (mode === "stream") listen();
  else tellState();
  plan();
};

if (live && mode) {
  $(".live-button", live).addEventListener("click", () => {
    sessionStorage.setItem(PAUSED, paused() ? "no" : "yes");
    failed = "";
    pause = SHORTEST;
    begin();
    read();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return stop();
    begin();
    read();
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && (begin(), read()));
  begin();
}

// --- keys ---

const KEYS = [
  ["/", "Search"],
  ["g, then a letter", "Go to a page"],
  ["j and k", "The next and the row before", "tr[data-row]"],
  ["Enter", "Open the row", "tr[data-row]"],
  ["x", "Select the row", "tr[data-row] input[type=checkbox]"],
  ["r", "Read the page again"],
  ["p", "Pause or resume refreshing"],
  ["?", "These keys"],
];

const help = () => {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "keys");
  const title = Object.assign(document.createElement("h2"), { id: "keys", textContent: "Keys" });
  const list = document.createElement("dl");
  const add = (key, text) => {
    const term = document.createElement("dt");
    term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    list.append(term, Object.assign(document.createElement("dd"), { textContent: text }));
  };
  for (const [key, text, needed] of KEYS) if (!needed || $(needed)) add(key, text);
  for (const link of $$(".nav a[data-key]")) add(`g ${link.dataset.key}`, link.textContent);
  const close = Object.assign(document.createElement("button"), { textContent: "Close" });
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(title, list, close);
  body.append(dialog);
  dialog.showModal();
};

const move = (by) => {
  const all = $$("tr[data-row]");
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("chosen"));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
  if (at >= 0) all[at].classList.remove("chosen");
  next.classList.add("chosen");
  const link = $("a.id", next) ?? $("a.main", next) ?? $("a", next);
  link?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};

// A "g" from a while ago is forgotten: the letter after it would lead away from the page.
const FORGOTTEN = 2000;
let goes = null;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
  const key = event.key;
  if (goes !== null) {
    clearTimeout(goes);
    goes = null;
    const link = $(`.nav a[data-key="${CSS.escape(key)}"]`);
    if (link) return location.assign(link.href);
  }
  if (key === "g") goes = setTimeout(() => (goes = null), FORGOTTEN);
  else if (key === "/") {
    event.preventDefault();
    $(".search input")?.focus();
  } else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "x") {
    $('tr.chosen input[type="checkbox"]')?.click();
  } else if (key === "r") location.reload();
  else if (key === "p") $(".live-button")?.click();
  else if (key === "?") help();
});
