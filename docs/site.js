// Pages that are read from a folder have no search: a browser starts no worker there.
if (location.protocol === "file:") document.body.classList.add("from-folder");

// A table that the page is too narrow for gets smaller type; if it is still too wide, or has many columns on a phone, its
// rows stand below each other, each value beside its column's name.
const tables = [...document.querySelectorAll(".md-typeset table:not([class])")].filter((table) => table.tHead);
for (const table of tables) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    for (const [i, cell] of [...row.cells].entries()) {
      cell.dataset.column = names[i];
      const value = document.createElement("span"); // so that what a cell holds stays together beside the name
      value.append(...cell.childNodes);
      if (value.hasChildNodes()) cell.append(value);
    }
  }
}
function fitTables() {
  for (const table of tables) {
    const page = table.closest(".md-typeset__scrollwrap") ?? table.parentElement;
    const isPhone = matchMedia("(max-width: 44em)").matches;
    const layouts = isPhone && table.tHead.rows[0].cells.length > 3 ? ["below"] : ["", "close", "below"];
    for (const layout of layouts) {
      table.dataset.rows = layout;
      if (page.scrollWidth <= page.clientWidth) break;
    }
  }
}

// A figure that is wider than a phone scrolls, and says so.
function markFigures() {
  for (const paragraph of document.querySelectorAll(".md-typeset p:has(img)"))
    paragraph.toggleAttribute("data-scrolls", paragraph.scrollWidth > paragraph.clientWidth + 1);
}
addEventListener("resize", markFigures);
addEventListener("load", markFigures);
addEventListener("resize", fitTables);
document.fonts.ready.then(fitTables);
addEventListener("load", fitTables); // after the theme has put tables into pages of their own
fitTables();
