// Rows → uPlot charts in the colours of the page, each with its numbers as a table for whoever cannot see it.

import { askSql } from "./ask.js";
import { clock, make, many, shown, table } from "./dom.js";
import { openDialog } from "./keys.js";

const HEIGHT = 190;
const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/; // as in `rollbus sql`; the last four are wide forms of the first

/** A colour of the stylesheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Draw the charts inside an element that are not drawn yet; with `again`, all of them, as for other colours. */
export function drawCharts(root, again = false) {
  for (const place of root.querySelectorAll(".plot")) {
    if (again) place.close();
    place.draw();
  }
}

/** Let go of the charts inside an element that is about to leave. */
export function closeCharts(root) {
  for (const place of root.querySelectorAll(".plot")) place.close();
}

/**
 * A chart over rows: x and series are {title, of, colour?, width?, dash?, points?}, and x may have a `name` for what its
 * number stands for in a row; band fills between two series by their numbers; bars is the width of a bar, in x, if the
 * first series is bars; `ticks` are the words under bars 0, 1, …; with `times`, x is in milliseconds and `marks` are
 * {from, to?, colour, label} at its times, else at its numbers. Without `gaps`, a line goes on over what is missing.
 */
export function chart(title, rows, x, series, { band = null, bars = 0, ticks = null, height = HEIGHT, times = false, marks = [], gaps = false, question = null } = {}) {
  if (!rows.length) return make("p", { class: "empty" }, "Nothing yet.");
  const data = [rows.map((row) => (times ? x.of(row) / 1000 : x.of(row))), ...series.map((each) => rows.map((row) => each.of(row) ?? null))];
  const nameOf = (row) => (times ? clock : shown)((x.name ?? x.of)(row));
  const place = make("div", { class: "plot", role: "img", "aria-label": describe(title, rows, x.title, nameOf, series) });
  const options = (place) => ({
    width: Math.max(220, place.clientWidth),
    height,
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    legend: { live: true },
    hooks: { ready: [newest], setCursor: [newest], drawClear: [(plot) => drawMarks(plot, place.marks, times ? 1000 : 1)] },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: times, range: bars || !times ? (_, low, high) => around(low, high, bars) : undefined }, y: { range: (_, low, high) => padded(low, high, bars > 0) } },
    axes: [{ ...axis(ticks, times, bars > 0), size: times ? 42 : 30 }, { ...axis(null), size: 54, values: (_, values, __, ___, step) => values.map((value) => marked(value, digits(step))) }],
    bands: band ? [{ series: band, fill: colour("band") }] : [],
    series: [
      { label: x.title, value: (_, value, __, at) => (value === null ? "–" : nameOf(place.rows[at])) },
      ...series.map((each) => ({
        label: each.title,
        stroke: colour(each.colour ?? "one"),
        fill: bars ? colour("bar") : undefined,
        width: each.width ?? 2,
        dash: each.dash,
        spanGaps: !gaps,
        points: { show: each.points ?? rows.length < 2, size: 6 },
        paths: bars ? uPlot.paths.bars({ size: [ticks ? 0.62 : 0.94, 60] }) : undefined,
        value: (_, value) => shown(value),
      })),
    ],
  });
  Object.assign(place, { data, rows, marks, options, shape: JSON.stringify([series.map((each) => each.title), bars, ticks]), plot: null, ...LIFE });
  const columns = [{ ...x, of: nameOf }, ...series.map((each) => ({ ...each, of: (row) => shown(each.of(row)) }))].map((each) => ({ ...each, number: true }));
  return make("figure", { "aria-label": title }, place, make("details", {}, make("summary", {}, "Numbers"),
    make("p", { class: "verdicts" }, button("CSV", `${title}: download as CSV`, () => save(title, "csv", csv([x, ...series], place.rows, x.name ?? x.of))),
      button("PNG", `${title}: download as PNG`, () => save(title, "png", picture(place))),
      question ? button("SQL", `${title}: SQL of its question`, () => showQuestion(question)) : null),
    table(title, columns, rows, { hidden: true })));
}

const button = (text, label, act) => make("button", { type: "button", class: "more", "aria-label": label, onclick: act }, text);

/** The rows as CSV; what is a text is quoted, and has an apostrophe where a spreadsheet would take it for a formula. */
export function csv(columns, rows, first) {
  const cell = (value) => (value === null || value === undefined ? "" : typeof value === "number" ? String(value) : `"${String(value).replace(FORMULA, "'$&").replaceAll('"', '""')}"`);
  return `data:text/csv;charset=utf-8,${encodeURIComponent([columns.map((column) => cell(column.title)), ...rows.map((row) => columns.map((column, at) => cell(at ? column.of(row) : first(row))))].map((line) => line.join(",")).join("\r\n"))}`;
}

/** The chart on the ground of its card. */
function picture(place) {
  place.draw();
  const { width, height } = place.plot.ctx.canvas;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  const ctx = copy.getContext("2d");
  ctx.fillStyle = colour("card");
  ctx.fillRect(0, 0, width, height);
  ctx.drawImage(place.plot.ctx.canvas, 0, 0);
  return copy.toDataURL("image/png");
}

function save(title, kind, href) {
  make("a", { href, download: `${title.toLowerCase().replaceAll(" ", "-")}.${kind}` }).click();
}

async function showQuestion(name) {
  openDialog(`The question ${name}`, make("pre", { tabindex: 0 }, await askSql(name)));
}

/** What a place of a chart can do: be drawn, take the data of a newer one, and be let go. */
const LIFE = {
  draw() {
    if (this.plot) return;
    this.plot = new uPlot(this.options(this), this.data, this);
    this.sizes = new ResizeObserver(() => this.plot.setSize({ width: Math.max(220, this.clientWidth), height: this.plot.height }));
    this.sizes.observe(this);
  },
  renew(made) {
    const isSame = made.shape === this.shape && this.plot;
    Object.assign(this, { data: made.data, rows: made.rows, marks: made.marks, options: made.options, shape: made.shape });
    if (isSame) this.plot.setData(this.data);
    else this.close();
  },
  close() {
    this.sizes?.disconnect();
    this.plot?.destroy();
    this.plot = null;
  },
};

/** Stretches of time as grounds, moments as lines, under the series. */
function drawMarks(plot, marks, unit) {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  for (const { from, to, colour: name, tall } of marks) {
    const start = Math.max(left, plot.valToPos(from / unit, "x", true));
    const end = to === undefined ? start + devicePixelRatio : Math.min(left + width, plot.valToPos(to / unit, "x", true));
    if (end < left || start > left + width) continue;
    plot.ctx.globalAlpha = to === undefined ? 0.55 : 0.16;
    plot.ctx.fillStyle = colour(name);
    plot.ctx.fillRect(start, top, Math.max((tall ? 2 : 1) * devicePixelRatio, end - start), to === undefined && !tall ? height * 0.12 : height);
  }
  plot.ctx.restore();
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

function axis(ticks, times = false, isBars = false) {
  return {
    stroke: colour("quiet"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("line"), width: 1, show: !isBars },
    ticks: { show: false },
    ...(times ? { values: (_, values, __, ___, step) => moments(values, step) } : ticks ? { splits: () => ticks.map((_, at) => at), values: () => ticks }
      : { values: (_, values, __, ___, step) => values.map((value) => (isBars ? marked(value, digits(step)) : Number.isInteger(value) ? shown(value) : "")) }),
  };
}

/** Times of day, to the second where the marks are closer than a minute, and the day where it begins. */
export function moments(values, step) {
  let day = null;
  return values.map((value) => {
    const [date, hour] = new Date(value * 1000).toISOString().slice(0, step < 60 ? 19 : 16).split("T");
    const isNew = date !== day;
    day = date;
    return isNew ? `${hour}\n${date}` : hour;
  });
}

/** The reach of an axis of numbers: half a bar beyond bars, and a step on both sides of a point that is alone. */
const around = (low, high, bars) => (bars ? [low - 0.6 * bars, high + 0.6 * bars] : low === high && low !== null ? [low - 1, high + 1] : [low, high]);

function padded(low, high, fromZero) {
  if (low === null || high === null) return [0, 1];
  const from = fromZero ? 0 : low;
  const space = (high - from || Math.abs(high) || 1) * 0.08;
  return [fromZero ? 0 : from - space, high + space];
}

function describe(title, rows, axis, nameOf, series) {
  const last = rows[rows.length - 1];
  return `${title}: ${many(rows.length, "point")}; at ${axis} ${nameOf(last)}, ${series.map((each) => `${each.title} ${shown(each.of(last))}`).join(", ")}`;
}
