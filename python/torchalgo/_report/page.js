"use strict";
// Shows the details of the operation under the pointer or the focus; a click keeps them. The page
// also works without this script: its links lead to the same details.
const panel = document.getElementById("inspector");
const inside = document.getElementById("inspected");
let kept = "";

function show(id) {
  const details = document.getElementById("d-" + id);
  if (!details) return;
  const copy = details.cloneNode(true);
  copy.removeAttribute("id");
  inside.replaceChildren(copy);
  panel.hidden = false;
  panel.scrollTop = 0;
  for (const link of document.querySelectorAll("a[data-op]")) {
    link.classList.toggle("on", link.dataset.op === id);
  }
}

function hide() {
  kept = "";
  panel.hidden = true;
  for (const link of document.querySelectorAll("a.on")) link.classList.remove("on");
}

const target = (event) => event.target.closest ? event.target.closest("[data-op]") : null;

document.addEventListener("pointerover", (event) => {
  if (event.pointerType !== "mouse" || kept) return;
  const found = target(event);
  if (found) show(found.dataset.op);
  else if (!panel.contains(event.target)) hide();
});
document.addEventListener("focusin", (event) => {
  const found = target(event);
  if (found && !kept) show(found.dataset.op);
});
document.addEventListener("click", (event) => {
  const found = target(event);
  if (!found) return;
  event.preventDefault();
  show(found.dataset.op);
  kept = found.dataset.op;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
function follow() {
  const id = location.hash.startsWith("#d-") ? location.hash.slice(3) : "";
  if (id) {
    show(id);
    kept = id;
  }
}
window.addEventListener("hashchange", follow);
follow();
document.getElementById("close").addEventListener("click", hide);

// Sorts a table by the column whose heading was selected.
function key(row, column, kind) {
  const text = row.cells[column].textContent.trim();
  if (kind === "text") return text;
  const value = parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(value) ? -Infinity : value;
}

function sort(heading) {
  const { sort: kind } = heading.dataset;
  const falls = heading.getAttribute("aria-sort") !== "descending" && kind === "number";
  const body = heading.closest("table").tBodies[0];
  const column = heading.cellIndex;
  const rows = [...body.rows].sort((a, b) => {
    const [one, other] = [key(a, column, kind), key(b, column, kind)];
    const order = kind === "text" ? one.localeCompare(other) : one - other;
    return falls ? -order : order;
  });
  body.replaceChildren(...rows);
  for (const cell of heading.parentNode.cells) cell.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
}

for (const heading of document.querySelectorAll("th[data-sort]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = heading.textContent;
  button.addEventListener("click", () => sort(heading));
  heading.replaceChildren(button);
}
