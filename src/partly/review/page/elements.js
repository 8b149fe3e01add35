// Small helpers around the DOM. Text is only ever set as text: no name can become markup.

export const find = (id) => document.getElementById(id);

/** An element with attributes, listeners (on…) and children: elements, texts, or null. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const percent = (probability) =>
  probability > 0 && probability < 0.005 ? "< 1 %"
    : probability < 1 && probability >= 0.995 ? "> 99 %"
      : `${Math.round(100 * probability)} %`;

export const word = (value) => ({ 1: "yes", 0: "no", "-1": "cannot tell" })[value];
export const sign = (value) => ({ 1: "✓", 0: "✗", "-1": "?" })[value];
export const kind = (value) => ({ 1: "yes", 0: "no", "-1": "skip" })[value];

/** What somebody who does not see the page should hear. */
export function announce(text) {
  find("live").textContent = text;
}

let hiding;
export function toast(text) {
  const shown = find("toast");
  shown.textContent = text;
  shown.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { shown.hidden = true; }, 5000);
}

/** An image of the data set; where it cannot be shown, the reason in its place. */
export function picture(size, row, name, attributes = {}) {
  const shown = element("img", { src: `/${size}/${row}`, alt: `Image ${name}`, draggable: "false", ...attributes });
  shown.addEventListener("error", async () => {
    let problem = "this image cannot be loaded now";
    try {
      const reply = await fetch(`/${size}/${row}`);
      if (!reply.ok) problem = (await reply.json()).problem ?? problem;
    } catch { /* the server is away; the banner says so */ }
    shown.replaceWith(element("p", { class: "broken" }, problem));
  });
  return shown;
}

export function showLarge(row, name) {
  const image = find("large-image");
  image.src = `/image/${row}`;
  image.alt = `Image ${name}`;
  find("large").showModal();
}
