// Answers on their way to the disk.
//
// An answer is kept in this browser's localStorage from the moment it is given until the server has
// confirmed that it is on the disk: a reload, a closed tab or a server that is away lose nothing.
// Each answer has its time as a name. Sending one twice, from two tabs, does no harm.

const cells = new Map(); // what stands in each cell we have heard of: { value, by, at, sent }
const waiting = new Map(); // answers that are not confirmed, by their time
const listeners = new Set();
const undoable = JSON.parse(sessionStorage.getItem("partly:undo") ?? "[]"); // groups of answers
const confirmed = []; // when our last answers were confirmed, for the rate
const RETRY = 1500, POLL = 1500, POLL_HIDDEN = 10000, AT_ONCE = 200, UNDOABLE = 500;

// row: the image that is shown here; lookedAt: rows that others have before them just now.
// refused: answers that the server did not take, in words, until somebody has seen them.
export const state = { start: null, by: "", people: {}, away: "", row: null, lookedAt: new Set(), refused: [] };

// The name of this page. It is in sessionStorage only from leaving the page to coming back: after a
// reload we are not somebody else; a tab that is duplicated is.
const TAB = "partly:tab";
export const tab = sessionStorage.getItem(TAB) ?? `${Date.now()}-${Math.random()}`;
sessionStorage.removeItem(TAB);
addEventListener("pagehide", () => { try { sessionStorage.setItem(TAB, tab); } catch { /* full */ } });
addEventListener("pageshow", () => sessionStorage.removeItem(TAB));

const key = (image, label) => JSON.stringify([image, label]);
const prefix = () => `partly:${state.start.journal}:`;

export const onChange = (listener) => listeners.add(listener);
const changed = (what) => listeners.forEach((listener) => listener(what));

export class NeedsToken extends Error {}

/** A reply of the server as JSON. */
export async function ask(address, body) {
  const reply = await fetch(address, body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json", "x-partly": "review" },
    body: JSON.stringify(body),
  });
  if (reply.status === 401) throw new NeedsToken();
  const content = await reply.json().catch(() => ({}));
  if (!reply.ok) throw Object.assign(new Error(content.problem ?? `status ${reply.status}`), { status: reply.status });
  return content;
}

/** Begin: `start` is what the server said of itself. */
export function begin(start) {
  state.start = start;
  state.people = start.people;
  state.by = localStorage.getItem("partly:name") ?? start.by;
  for (const wish of stored()) {
    waiting.set(wish.at, wish);
    if (wish.value !== null) put(wish, false);
  }
  flush();
  poll();
}

export function rename(name) {
  state.by = name.trim();
  remember("partly:name", state.by);
  changed("name");
}

function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* full or forbidden: kept in memory alone */ }
}

/** Answers that are not confirmed, from whatever tab, the first given first. */
function stored() {
  const found = [];
  for (let place = 0; place < localStorage.length; place += 1) {
    const name = localStorage.key(place);
    if (!name.startsWith(prefix())) continue;
    try { found.push(JSON.parse(localStorage.getItem(name))); } catch { /* not ours */ }
  }
  return found.sort((one, other) => (one.at < other.at ? -1 : 1));
}

const put = ({ image, label, value, by, at }, sent) => {
  if (value === null) cells.delete(key(image, label));
  else cells.set(key(image, label), { value, by, at, sent });
};

/** What stands in a cell, or null. */
export const answerOf = ({ image, label }) => cells.get(key(image, label)) ?? null;

/** The server told of a cell along with a question. What we wait for is newer. */
export function learn(cell) {
  if (isWaiting(cell)) return;
  put(cell.answer ?? { ...cell, value: null }, true);
}

const isWaiting = ({ image, label }) =>
  [...waiting.values()].some((wish) => wish.image === image && wish.label === label);

let last = 0;
/** Now, later than any moment before, as the server writes it. */
function moment() {
  last = Math.max(Date.now(), last + 1);
  return new Date(last).toISOString().replace("Z", "+00:00");
}

/** Say `value` of each of these cells. They can be taken back together. */
export function give(group, value) {
  const wishes = group.map(({ row, image, label }) => ({
    row, image, label, value, by: state.by, at: moment(), seen: answerOf({ image, label })?.at ?? null,
  }));
  for (const wish of wishes) { keep(wish); put(wish, false); }
  undoable.push(wishes.map(({ row, image, label, by, at }) => ({ row, image, label, by, at })));
  undoable.splice(0, undoable.length - UNDOABLE);
  rememberUndoable();
  changed("given");
  flush();
}

/** Take the last answers back; returns the cells they were about, or null. */
export function undo() {
  const group = undoable.pop();
  if (!group) return null;
  rememberUndoable();
  for (const { row, image, label, by, at } of group) {
    keep({ row, image, label, value: null, by, at: moment(), undoes: at });
    if (answerOf({ image, label })?.at === at) put({ image, label, value: null });
  }
  changed("given");
  flush();
  return group;
}

/** Can this one be taken back alone? It is the last that was given to its cell in this tab. */
export function undoOne({ image, label }) {
  const standing = answerOf({ image, label });
  const place = undoable.findLastIndex((group) => group.some((one) => one.at === standing?.at));
  if (place < 0) return false;
  const [one] = undoable[place].splice(undoable[place].findIndex((each) => each.at === standing.at), 1);
  if (!undoable[place].length) undoable.splice(place, 1);
  undoable.push([one]);
  undo();
  return true;
}

const rememberUndoable = () => {
  try { sessionStorage.setItem("partly:undo", JSON.stringify(undoable)); } catch { /* as above */ }
};

function keep(wish) {
  waiting.set(wish.at, wish);
  remember(prefix() + wish.at, JSON.stringify(wish));
}

export const unsent = () => waiting.size;

let sending = false, retry;
/** Send what waits, in order. One request at a time, so that answers arrive as they were given. */
export async function flush() {
  clearTimeout(retry);
  if (sending || !state.start) return;
  sending = true;
  try {
    while (waiting.size) {
      const wishes = [...waiting.values()].slice(0, AT_ONCE);
      const answers = wishes.map(({ row, ...wish }) => wish);
      const reply = await ask("/api/answers", { answers });
      reply.outcomes.forEach((outcome, place) => settle(wishes[place], outcome));
      state.people = reply.people;
      setAway("");
      changed("confirmed");
    }
  } catch (error) {
    failed(error);
    retry = setTimeout(flush, RETRY);
  } finally {
    sending = false;
  }
}

function settle(wish, { problem, now }) {
  waiting.delete(wish.at);
  localStorage.removeItem(prefix() + wish.at);
  const about = `${wish.label}, ${wish.image}: ${problem}`;
  if (problem && wish.value === null) changed({ problem: about });
  else if (problem) state.refused.push(about);
  else if (wish.value !== null) confirmed.push(Date.now());
  else confirmed.pop();
  if (!isWaiting(wish)) put(now ?? { ...wish, value: null }, true);
}

function failed(error) {
  if (error instanceof NeedsToken) changed("token");
  else if (error.status === 503) setAway(error.message);
  else if (error.status) setAway(`The server refused: ${error.message}`);
  else setAway("The server does not answer.");
}

function setAway(reason) {
  if (reason === state.away) return;
  state.away = reason;
  changed("away");
}

let polling;
/** Ask again and again what others have answered, and whether the server is there. */
async function poll() {
  clearTimeout(polling);
  try {
    const query = new URLSearchParams({ since: state.start.place, tab });
    if (state.row !== null && !document.hidden) query.set("row", state.row);
    const news = await ask(`/api/answers?${query}`);
    state.lookedAt = new Set(news.looked_at);
    state.start.place = news.place;
    state.people = news.people;
    for (const answer of news.answers) if (!isWaiting(answer)) put(answer, true);
    if (!waiting.size) setAway("");
    if (news.anew) changed("anew");
    changed("news");
  } catch (error) {
    failed(error);
  }
  if (waiting.size) flush();
  polling = setTimeout(poll, document.hidden ? POLL_HIDDEN : POLL);
}
document.addEventListener("visibilitychange", () => { if (state.start && !document.hidden) poll(); });

/** Answers a minute, over the last two minutes. */
export function rate() {
  const since = Date.now() - 120000;
  const recent = confirmed.filter((time) => time > since);
  if (recent.length < 3) return null;
  return Math.round(recent.length / Math.max((Date.now() - recent[0]) / 60000, 0.25));
}
