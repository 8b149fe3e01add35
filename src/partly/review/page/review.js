// The page: which view is shown, the keys, and the figures at the top.

import * as answers from "./answers.js";
import { state } from "./answers.js";
import { element, find, toast } from "./elements.js";
import * as gallery from "./gallery.js";
import * as questions from "./questions.js";

const NAMES = { questions: "Questions", suspects: "Suspected errors", gallery: "Gallery" };
let shown = { view: "questions", column: null };
const current = () => (shown.view === "gallery" ? gallery : questions);

// --- The address: #/gallery/label --------------------------------------------------------------

function wanted() {
  const [, view, label] = location.hash.split("/");
  const column = label === undefined ? -1 : state.start.labels.indexOf(decoded(label));
  return { view: view in NAMES ? view : "questions", column: column < 0 ? null : column };
}

/** What stands behind the #; as it is where it is not encoded as it should be. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

const address = (view, column) =>
  `#/${view}${column === null ? "" : `/${encodeURIComponent(state.start.labels[column])}`}`;

async function route() {
  shown = wanted();
  if (shown.view === "gallery" && shown.column === null) shown.column = 0;
  for (const link of document.querySelectorAll("nav a")) {
    link.href = address(link.dataset.view, shown.column);
    if (link.dataset.view === shown.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${NAMES[shown.view]} – ${state.start.data} – Partly`;
  fillLabels();
  try {
    if (shown.view === "gallery") await gallery.open(shown.column);
    else await questions.open(shown.view, shown.column);
  } catch (error) {
    if (error instanceof answers.NeedsToken) return login();
    find("main").replaceChildren(element("p", { class: "end" }, `This cannot be shown now: ${error.message}`));
  }
  figures();
}

function fillLabels() {
  const select = find("label");
  const all = shown.view === "gallery" ? [] : [element("option", { value: "" }, "all labels")];
  select.replaceChildren(...all, ...state.start.labels.map((name, column) => element("option", { value: column }, name)));
  select.value = shown.column === null ? "" : shown.column;
}

// --- Figures -----------------------------------------------------------------------------------

function figures() {
  const { done, total } = current().counts(), rate = answers.rate(), unsent = answers.unsent();
  find("progress-text").textContent = total ? `${done.toLocaleString()} of ${total.toLocaleString()}` : "";
  find("progress").max = Math.max(1, total);
  find("progress").value = done;
  // Of a new round nothing is done yet; what was done before is not lost.
  const mine = state.people[state.by] ?? 0;
  find("mine").textContent = mine > done ? `${mine.toLocaleString()} answered` : "";
  find("rate").textContent = rate === null ? "" : `${rate} a minute`;
  const others = Object.entries(state.people).filter(([name]) => name !== state.by);
  find("others").textContent = others.length ? `${others.slice(0, 2).map(([name, count]) => `${name || "nameless"} ${count.toLocaleString()}`).join(", ")}${others.length > 2 ? " …" : ""}` : "";
  find("others").title = others.map(([name, count]) => `${name || "nameless"}: ${count} answers`).join("\n");
  find("who").textContent = state.by || "Your name";
  const saved = unsent ? `${unsent} not saved yet` : "all saved";
  if (find("saved").textContent !== saved) find("saved").textContent = saved;
  find("saved").classList.toggle("waiting", unsent > 0);
  find("down").hidden = !state.away;
  find("down").textContent = state.away && `${state.away} ${unsent ? `${unsent === 1 ? "One answer is" : `${unsent} answers are`} kept in this browser and will be sent when it is back.` : "Answers are kept in this browser until it is back."}`;
  const { refused } = state;
  find("refused").hidden = !refused.length;
  find("refused-text").textContent = refused.length && `${refused.length === 1 ? "One answer was" : `${refused.length} answers were`} refused and ${refused.length === 1 ? "is" : "are"} not saved. ${refused.slice(0, 3).join("; ")}${refused.length > 3 ? "; …" : ""}`;
}

answers.onChange((what) => {
  if (what === "token") { if (!find("login").open) login(); }
  else if (what === "anew") route();
  else if (what.problem) toast(what.problem);
  current().refresh();
  figures();
});

// --- Keys --------------------------------------------------------------------------------------

const VALUES = { y: 1, n: 0, s: -1 };
const ARROWS = { arrowleft: [-1, 0], arrowright: [1, 0], arrowup: [0, -1], arrowdown: [0, 1] };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.start) return;
  if (event.target.closest("input:not([type=radio]), select, textarea") || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input") && event.key.startsWith("Arrow")) return; // between radio buttons
  const key = event.key.toLowerCase();
  if (event.repeat && !(key in ARROWS)) return; // a key held down answers once
  if (!press(key)) return;
  event.preventDefault();
});

/** Do what a key means; false if it means nothing. */
function press(key) {
  if (key in VALUES) current().say(VALUES[key]);
  else if (key in ARROWS) arrow(...ARROWS[key]);
  else if (key === "u" || key === "backspace") takeBack();
  else if (key === "z") current().enlarge();
  else if (key === "?") help();
  else return false;
  return true;
}

function arrow(across, down) {
  if (shown.view === "gallery") gallery.move(across, down);
  else if (across) questions.move(across);
  else questions.step(down);
}

function takeBack() {
  const group = answers.undo();
  if (!group) return toast("There is nothing to undo in this tab.");
  toast(group.length === 1 ? `Taken back: ${group[0].label}` : `${group.length} answers taken back`);
  return current().goTo(group[0]);
}

// --- Dialogs -----------------------------------------------------------------------------------

function help() {
  find("name").value = state.by;
  find("help").showModal();
}
document.querySelector("a.skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); });
find("undo").addEventListener("click", takeBack);
find("settings").addEventListener("click", help);
find("help-form").addEventListener("submit", (event) => { event.preventDefault(); find("help").close(); });
find("help").addEventListener("close", () => answers.rename(find("name").value));
find("refused-close").addEventListener("click", () => { state.refused.length = 0; figures(); });
find("large-close").addEventListener("click", () => find("large").close());
find("label").addEventListener("change", (event) => {
  const column = event.target.value === "" ? null : Number(event.target.value);
  event.target.blur(); // the keys are for the question again
  location.hash = address(shown.view, column);
});

function login(problem = "") {
  find("login-problem").textContent = problem;
  if (!find("login").open) find("login").showModal();
}
find("login").addEventListener("cancel", (event) => event.preventDefault());
find("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  await enter(find("token").value);
});

async function enter(token) {
  try {
    await answers.ask("/api/login", { token });
  } catch (error) {
    return login(error instanceof answers.NeedsToken ? "This is not the token." : error.message);
  }
  find("token").value = "";
  if (find("login").open) find("login").close();
  return state.start ? answers.flush() : start();
}

// --- The beginning -----------------------------------------------------------------------------

async function start() {
  try {
    answers.begin(await answers.ask("/api/start"));
  } catch (error) {
    if (error instanceof answers.NeedsToken) return login();
    find("main").replaceChildren(element("p", { class: "end" }, "The server does not answer. This page tries again."));
    return setTimeout(start, 1500);
  }
  find("title").textContent = state.start.data;
  addEventListener("hashchange", route);
  await route();
  setInterval(figures, 5000);
  if (!state.by) help();
}

// The token stands behind the # of the address that was printed, where no server sees it.
const given = /^#token=(.+)$/.exec(location.hash);
if (given) {
  history.replaceState(null, "", "/");
  enter(decoded(given[1]));
} else start();
