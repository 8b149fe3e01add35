// One image and the questions about it.

import { answerOf, ask, give, learn, state, tab } from "./answers.js";
import { announce, element, find, kind, percent, picture, showLarge, sign, word } from "./elements.js";

const view = { kind: "", column: null, images: [], at: 0, which: 0 };
let drawn = null; // the row whose image is on the page

const image = () => view.images[view.at];
const question = () => image()?.questions[view.which];
const all = () => view.images.flatMap((one) => one.questions);
const isOpen = (one) => answerOf(one) === null;

/** Fetch the questions of a kind and show the first that is open. */
export async function open(which, column) {
  const query = new URLSearchParams({ kind: which, tab });
  if (column !== null) query.set("column", column);
  const { images, looked_at: lookedAt } = await ask(`/api/queue?${query}`);
  state.lookedAt = new Set(lookedAt);
  for (const one of images) one.questions.forEach(learn);
  Object.assign(view, { kind: which, column, images, at: 0, which: 0 });
  drawn = null;
  if (!toOpen()) view.at = images.length;
  draw();
}

export function counts() {
  const questions = all();
  return { done: questions.filter((one) => answerOf(one)?.sent).length, total: questions.length };
}

/** Go to the first open question from here on, then from the beginning; false if there is none.
    Images that others have before them come last. */
function toOpen() {
  const ours = (one) => one.row === drawn || !state.lookedAt.has(one.row);
  return toFirst(ours) || toFirst(() => true);
}

function toFirst(fits) {
  const { images } = view;
  for (let step = 0; step <= images.length && images.length; step += 1) {
    const at = (view.at + step) % images.length;
    const from = step === 0 ? view.which : 0;
    const which = fits(images[at]) ? images[at].questions.findIndex((one, place) => place >= from && isOpen(one)) : -1;
    if (which >= 0) { Object.assign(view, { at, which }); return true; }
  }
  return false;
}

export function say(value) {
  if (!question()) return;
  give([question()], value);
  if (!toOpen()) view.at = view.images.length;
  draw();
}

export function move(images) {
  const at = view.at + images;
  if (at < 0 || at >= view.images.length) return;
  Object.assign(view, { at, which: 0 });
  const open = image().questions.findIndex(isOpen);
  if (open > 0) view.which = open;
  draw();
}

export function step(questions) {
  const which = view.which + questions;
  if (!image()) return;
  if (which >= 0 && which < image().questions.length) { view.which = which; draw(); } else move(questions);
}

/** Go to the cell whose answer was taken back. */
export function goTo(cell) {
  const at = view.images.findIndex((one) => one.image === cell.image);
  if (at < 0) return draw();
  const which = view.images[at].questions.findIndex((one) => one.label === cell.label);
  Object.assign(view, { at, which: Math.max(0, which) });
  return draw();
}

export const enlarge = () => { if (image()) showLarge(image().row, image().image); };

/** Others answered, or ours were confirmed: the question stays, what is said about it may not. */
export function refresh() {
  if (!image()) { if (view.images.length && toOpen()) draw(); return; }
  drawPanel();
}

function draw() {
  const main = find("main");
  state.row = image()?.row ?? null;
  if (!image()) { drawn = null; main.replaceChildren(ending()); main.className = "ended"; announce("All questions are answered."); return; }
  if (drawn !== image().row) {
    drawn = image().row;
    main.className = "asking";
    main.replaceChildren(
      element("figure", { class: "stage" }, stage()),
      element("section", { class: "panel", "aria-label": "Question" }),
    );
    main.querySelector(".panel").append(...panel());
  } else drawPanel();
  preload(view.images[view.at + 1]);
  const one = question();
  announce(`${one.label}? The model says ${percent(one.probability)}. Image ${view.at + 1} of ${view.images.length}.`);
}

function stage() {
  const shown = picture("image", image().row, image().image);
  shown.addEventListener("click", enlarge);
  swipe(shown);
  return shown;
}

/** A finger that moves to the side turns to the next or the previous image. */
function swipe(shown) {
  let from = null;
  shown.addEventListener("touchstart", (event) => { from = event.touches.length === 1 ? event.touches[0] : null; }, { passive: true });
  shown.addEventListener("touchend", (event) => {
    if (!from) return;
    const to = event.changedTouches[0], across = to.clientX - from.clientX, down = to.clientY - from.clientY;
    if (Math.abs(across) > 60 && Math.abs(across) > 2 * Math.abs(down)) move(across < 0 ? 1 : -1);
    from = null;
  });
}

function preload(next) {
  if (next) new Image().src = `/image/${next.row}`;
}

function drawPanel() {
  const place = find("main").querySelector(".panel");
  if (!place) return;
  const focused = document.activeElement?.dataset?.focus; // the button in use stays in use
  place.replaceChildren(...panel());
  if (focused) place.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function panel() {
  const one = question(), answer = answerOf(one);
  const there = image().there.filter((label) => !image().questions.some((asked) => asked.label === label));
  return [
    element("p", { class: "where" },
      element("button", { type: "button", "aria-label": "Previous image", title: "Previous image (←)", "data-focus": "previous", disabled: view.at === 0, onclick: () => move(-1) }, "‹"),
      element("span", { title: image().image }, `Image ${view.at + 1} of ${view.images.length}`),
      element("button", { type: "button", "aria-label": "Next image", title: "Next image (→)", "data-focus": "next", disabled: view.at + 1 >= view.images.length, onclick: () => move(1) }, "›"),
    ),
    element("h2", {}, one.label, element("span", { class: "ask" }, "?")),
    meter(one.probability),
    saidBefore(one, answer),
    element("div", { class: "answers", role: "group", "aria-label": `Is ${one.label} in this image?` },
      button(1, "Yes", "Y", answer), button(0, "No", "N", answer), button(-1, "Cannot tell", "S", answer)),
    image().questions.length > 1 ? others() : null,
    there.length ? element("p", { class: "there" }, `Said to be there: ${there.join(", ")}`) : null,
    element("p", { class: "name", title: image().image }, image().image),
  ].filter((part) => part !== null);
}

function meter(probability) {
  return element("p", { class: "belief" },
    element("span", {}, "The model says ", element("b", {}, percent(probability))),
    element("meter", { min: 0, max: 1, value: probability, "aria-hidden": "true" }));
}

function saidBefore(one, answer) {
  const parts = [];
  if (one.known !== -1) parts.push(element("span", {}, "The data says ", element("b", { class: kind(one.known) }, word(one.known))));
  if (answer) {
    const who = answer.by === state.by ? "You said" : `${answer.by || "Somebody"} said`;
    parts.push(element("span", {}, `${who} `, element("b", { class: kind(answer.value) }, word(answer.value)), answer.sent ? null : " (not saved yet)"));
  }
  return element("p", { class: "said" }, ...parts);
}

function button(value, text, letter, answer) {
  return element("button", {
    type: "button", class: kind(value), "data-focus": kind(value), "aria-pressed": String(answer?.value === value),
    "aria-keyshortcuts": letter, onclick: () => say(value),
  }, element("span", { class: "sign", "aria-hidden": "true" }, sign(value)), element("span", {}, text), element("kbd", { "aria-hidden": "true" }, letter));
}

function others() {
  return element("ol", { class: "others", "aria-label": "Questions about this image" }, ...image().questions.map((one, place) => {
    const answer = answerOf(one);
    return element("li", {}, element("button", {
      type: "button", "aria-current": place === view.which ? "true" : null, "data-focus": `question-${place}`,
      class: answer?.sent === false ? "unsent" : null, onclick: () => { view.which = place; draw(); },
    }, element("span", { class: `mark ${answer ? kind(answer.value) : ""}` , "aria-label": answer ? word(answer.value) : "open" }, answer ? sign(answer.value) : "·"),
    element("span", { class: "text" }, one.label), element("span", { class: "number" }, percent(one.probability))));
  }));
}

/** What stands at the end: all is answered, or there was nothing to ask. */
function ending() {
  const none = !view.images.length;
  const nothing = view.kind === "suspects" ? "No known label looks wrong." : "No label is unknown here: there is nothing to ask.";
  return element("section", { class: "end" },
    element("h2", {}, none ? nothing : "All of these are answered."),
    none ? null : element("p", {}, "Whoever trains on this data now trains on the answers as well."),
    none ? null : element("button", { type: "button", class: "more", onclick: () => open(view.kind, view.column) }, "More questions"),
    none ? null : element("button", { type: "button", onclick: () => { Object.assign(view, { at: view.images.length - 1, which: 0 }); draw(); } }, "Look back"),
  );
}
