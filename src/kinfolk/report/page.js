"use strict";
// Charts: values on hover and on keyboard focus, series that can be hidden. Without this script they still show.
for (const chart of document.querySelectorAll(".chart")) {
  const tip = chart.querySelector(".tip");
  const plot = chart.querySelector(".plot");
  const read = chart.querySelector(".read");

  function show(point) {
    const own = plot.getBoundingClientRect();
    const at = point.querySelector(".mark").getBoundingClientRect();
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const centre = at.left + at.width / 2 - own.left;
    const left = Math.min(Math.max(centre - tip.offsetWidth / 2, 0), own.width - tip.offsetWidth);
    const above = at.top - own.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(left, 0)}px`;
    tip.style.top = `${above < 0 ? at.bottom - own.top + 8 : above}px`;
  }
  function hide() {
    tip.hidden = true;
  }

  for (const drawing of plot.querySelectorAll("svg")) {
    const rows = () =>
      [...drawing.querySelectorAll(".series:not(.hidden)")].map((series) => [...series.querySelectorAll(".point")]);
    const all = [...drawing.querySelectorAll(".point")];

    function only(point) {
      for (const other of all) other.setAttribute("tabindex", other === point ? "0" : "-1");
    }
    function go(point) {
      if (!point) return;
      only(point);
      point.focus();
    }
    drawing.restart = () => only(rows().flat()[0]);
    drawing.restart();

    for (const point of all) {
      point.addEventListener("pointerenter", () => show(point));
      point.addEventListener("pointerleave", hide);
      point.addEventListener("focus", () => {
        show(point);
        read.textContent = point.getAttribute("aria-label");
      });
      point.addEventListener("blur", hide);
    }
    drawing.addEventListener("keydown", (event) => {
      const point = document.activeElement;
      const series = rows();
      const row = series.findIndex((points) => points.includes(point));
      if (row < 0) return;
      const place = series[row].indexOf(point);
      const across = (points) => points[Math.min(place, points.length - 1)];
      const moves = {
        ArrowRight: () => series[row][place + 1],
        ArrowLeft: () => series[row][place - 1],
        ArrowDown: () => series[row + 1] && across(series[row + 1]),
        ArrowUp: () => series[row - 1] && across(series[row - 1]),
        Home: () => series[row][0],
        End: () => series[row][series[row].length - 1],
        Escape: () => hide(),
      };
      if (!moves[event.key]) return;
      event.preventDefault();
      go(moves[event.key]());
    });
  }

  for (const button of chart.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const series of plot.querySelectorAll(`.series[data-series="${button.dataset.series}"]`)) {
        series.classList.toggle("hidden", !shown);
      }
      for (const drawing of plot.querySelectorAll("svg")) drawing.restart();
    });
  }
}
