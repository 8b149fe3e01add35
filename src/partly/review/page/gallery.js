// All images of a label, ranked: to sweep through and mend what stands out.

import { answerOf, ask, give, learn, state, undoOne } from "./answers.js";
import { announce, element, find, kind, percent, picture, showLarge, sign, toast, word } from "./elements.js";

const view = { column: 0, order: "likely", show: "open", tiles: [], left: 0, brush: 1, at: 0 };
const ORDERS = { likely: "likely first", unlikely: "unlikely first", unsure: "unsure first" };
const SHOWN = { open: "open", yes: "yes", no: "no", all: "all" };

const label = () => state.start.labels[view.column];
const standing = (tile) => answerOf(tile)?.value ?? (tile.known === -1 ? null : tile.known);
const openOnes = () => view.tiles.filter((tile) => standing(tile) === null);

export async function open(column) {
  Object.assign(view, { column, tiles: [], at: 0 });
  state.row = null;
  await more();
}

async function more() {
  const query = new URLSearchParams({ column: view.column, order: view.order, show: view.show });
  const first = view.tiles.length;
  if (first) query.set("after", view.tiles[first - 1].row);
  const reply = await ask(`/api/gallery?${query}`);
  reply.tiles.forEach(learn);
  view.tiles.push(...reply.tiles);
  view.left = reply.left;
  draw();
  if (first && reply.tiles.length) focus(first);
  announce(`${label()}: ${view.tiles.length} images`);
}

export function counts() {
  const total = view.tiles.length;
  return { done: view.tiles.filter((tile) => answerOf(tile)?.sent).length, total };
}

export function say(value) {
  const tile = view.tiles[view.at];
  if (!tile) return;
  tell(tile, value);
  focus(Math.min(view.at + 1, view.tiles.length - 1));
}

function tell(tile, value) {
  give([tile], value);
  announce(`${word(value)}: ${tile.image}`);
}

/** A tap: what the brush says, or take that back. */
function tap(place) {
  view.at = place;
  const tile = view.tiles[place], answer = answerOf(tile);
  if (!(answer && answer.value === view.brush && undoOne(tile))) tell(tile, view.brush);
}

/** The arrows: to the side by one, up and down by a row as wide as it is now. */
export function move(across, down) {
  const tops = [...find("main").querySelectorAll(".tiles > li")].map((one) => one.offsetTop);
  const wide = tops.findIndex((top) => top !== tops[0]);
  const to = view.at + across + down * (wide < 0 ? tops.length : wide);
  if (to >= 0 && to < view.tiles.length) focus(to);
}

export const enlarge = () => { const tile = view.tiles[view.at]; if (tile) showLarge(tile.row, tile.image); };

export function goTo(cell) {
  const at = view.tiles.findIndex((tile) => tile.image === cell.image && tile.label === cell.label);
  if (at >= 0) focus(at);
}

function focus(place) {
  const buttons = find("main").querySelectorAll(".tile");
  buttons[view.at]?.setAttribute("tabindex", "-1");
  view.at = place;
  buttons[place]?.setAttribute("tabindex", "0");
  buttons[place]?.focus();
}

export function refresh() {
  const buttons = find("main").querySelectorAll(".tiles > li");
  view.tiles.forEach((tile, place) => { if (buttons[place]) mark(buttons[place], tile); });
  const rest = find("main").querySelector(".rest");
  if (rest) rest.replaceChildren(...bulk());
}

function draw() {
  const main = find("main");
  main.className = "sweeping";
  main.replaceChildren(
    element("form", { class: "choices", onsubmit: (event) => event.preventDefault() },
      choice("show", "Show", SHOWN), choice("order", "Order", ORDERS), brush()),
    view.tiles.length
      ? element("ul", { class: "tiles", "aria-label": label() }, ...view.tiles.map(tileOf))
      : element("p", { class: "end" }, `No image of ${label()} is ${view.show === "open" ? "open" : "of this kind"}.`),
    element("p", { class: "rest" }, ...bulk()),
  );
}

function choice(name, text, options) {
  const select = element("select", { onchange: () => { view[name] = select.value; open(view.column); } },
    ...Object.entries(options).map(([value, shown]) => element("option", { value, selected: view[name] === value }, shown)));
  return element("label", {}, element("span", {}, text), " ", select);
}

function brush() {
  return element("fieldset", {}, element("legend", {}, "A tap says"), ...[1, 0, -1].map((value) =>
    element("label", { class: kind(value) },
      element("input", { type: "radio", name: "brush", value, checked: view.brush === value, onchange: () => { view.brush = value; refresh(); } }),
      element("span", {}, word(value)))));
}

function tileOf(tile, place) {
  const button = element("button", { type: "button", class: "tile", tabindex: place === view.at ? "0" : "-1",
    onclick: () => tap(place), onfocus: () => { view.at = place; } },
  picture("thumb", tile.row, tile.image, { loading: "lazy", alt: "" }),
  element("span", { class: "badge", "aria-hidden": "true" }));
  const item = element("li", {}, button,
    element("span", { class: "number", "aria-hidden": "true" }, percent(tile.probability)),
    element("button", { type: "button", class: "enlarge", tabindex: "-1", "aria-label": `Enlarge ${tile.image}`, title: "Enlarge (Z)",
      onclick: () => { view.at = place; showLarge(tile.row, tile.image); } }, "⤢"));
  mark(item, tile);
  return item;
}

function mark(item, tile) {
  const answer = answerOf(tile), value = standing(tile);
  item.className = `${value === null ? "" : kind(value)} ${answer ? "answered" : ""} ${answer?.sent === false ? "unsent" : ""}`;
  item.querySelector(".badge").textContent = value === null ? "" : sign(value);
  item.querySelector(".tile").setAttribute("aria-label",
    `${tile.image}: ${percent(tile.probability)}, ${value === null ? "open" : word(value)}${answer ? "" : value === null ? "" : " in the data"}`);
}

/** The buttons below: the rest at once, and the next images. */
function bulk() {
  const rest = openOnes(), value = view.brush;
  return [
    rest.length ? element("button", { type: "button", class: kind(value), onclick: () => {
      give(rest, value);
      toast(`${rest.length} answers: ${word(value)}. U takes them back.`);
    } }, `Say ${word(value)} to the ${rest.length} open ${rest.length === 1 ? "one" : "ones"} shown`) : null,
    view.left ? element("button", { type: "button", onclick: more }, `Show more (${view.left.toLocaleString()} left)`) : null,
  ].filter((part) => part !== null);
}
