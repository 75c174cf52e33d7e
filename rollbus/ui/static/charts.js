// Rows → uPlot charts in the colours of the page, each with its numbers as a table for whoever cannot see it.

import { make, shown, table } from "./dom.js";

const HEIGHT = 190;
const open = new Set();

/** A colour of the stylesheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Leave no chart of the page before. */
export function closeCharts() {
  for (const each of open) each.close();
  open.clear();
}

/**
 * A chart over rows: x and series are {title, of, colour?, width?, dash?, points?}; band fills between two series by
 * their numbers; bars draws the first series as bars.
 */
export function chart(title, rows, x, series, { band = null, bars = false, ticks = null, height = HEIGHT } = {}) {
  const figure = make("figure", { "aria-label": title });
  if (!rows.length) return make("p", { class: "empty" }, "Nothing yet.");
  const data = [rows.map(x.of), ...series.map((each) => rows.map((row) => each.of(row) ?? null))];
  const place = make("div", { class: "plot", role: "img", "aria-label": describe(title, rows, x, series) });
  figure.append(place, make("details", {}, make("summary", {}, "Numbers"),
    table(title, [x, ...series].map((each) => ({ title: each.title, of: (row) => shown(each.of(row)), number: true })), rows, { hidden: true })));
  const options = () => ({
    width: Math.max(220, place.clientWidth),
    height,
    legend: { live: true },
    hooks: { ready: [newest], setCursor: [newest] },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: false, range: bars ? (_, low, high) => [low - 0.6, high + 0.6] : undefined }, y: { range: (_, low, high) => padded(low, high, bars) } },
    axes: [{ ...axis(ticks), size: 30 }, { ...axis(null), size: 54, values: (_, values, __, ___, step) => values.map((value) => marked(value, digits(step))) }],
    bands: band ? [{ series: band, fill: colour("band") }] : [],
    series: [
      { label: x.title, value: (_, value) => (ticks && value !== null ? ticks[value] ?? "" : shown(value)) },
      ...series.map((each) => ({
        label: each.title,
        stroke: colour(each.colour ?? "one"),
        fill: bars ? colour("bar") : undefined,
        width: each.width ?? 2,
        dash: each.dash,
        spanGaps: true,
        points: { show: rows.length < 2 },
        paths: bars ? uPlot.paths.bars({ size: [0.62, 60] }) : undefined,
        value: (_, value) => shown(value),
      })),
    ],
  });
  whenPlaced(place, () => {
    const plot = new uPlot(options(), data, place);
    const sizes = new ResizeObserver(() => plot.setSize({ width: Math.max(220, place.clientWidth), height }));
    sizes.observe(place);
    open.add({ close: () => { sizes.disconnect(); plot.destroy(); } });
  });
  return figure;
}

/** Where nobody points at a place, the legend says what the newest one has. */
function newest(plot) {
  if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

const marked = (value, places) => value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });

/** Decimal places that tell the marks of an axis apart. */
function digits(step) {
  let places = 0;
  while (places < 8 && Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) > 1e-6) places++;
  return places;
}

function axis(ticks) {
  return {
    stroke: colour("quiet"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("line"), width: 1, show: !ticks },
    ticks: { show: false },
    ...(ticks ? { splits: () => ticks.map((_, at) => at), values: () => ticks } : { values: (_, values) => values.map((value) => (Number.isInteger(value) ? shown(value) : "")) }),
  };
}

function padded(low, high, fromZero) {
  if (low === null || high === null) return [0, 1];
  const from = fromZero ? 0 : low;
  const space = (high - from || Math.abs(high) || 1) * 0.08;
  return [fromZero ? 0 : from - space, high + space];
}

function describe(title, rows, x, series) {
  const last = rows[rows.length - 1];
  return `${title}: ${rows.length} points; at ${x.title} ${shown(x.of(last))}, ${series.map((each) => `${each.title} ${shown(each.of(last))}`).join(", ")}`;
}

function whenPlaced(element, act) {
  const wait = () => (element.isConnected ? act() : requestAnimationFrame(wait));
  requestAnimationFrame(wait);
}
