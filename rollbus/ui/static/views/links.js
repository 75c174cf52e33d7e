// Links that several views draw: to a thing by its id, to the episodes with a label; and a fate with its colour.

import { make, short, shown } from "../dom.js";
import { seen } from "../text.js";

export const link = (kind, id, text = short(id)) => make("a", { href: `#/${kind}/${encodeURIComponent(id)}`, title: id }, text);
export const fateOf = (row) => make("span", { class: `fate ${row.fate}` }, row.reason ? `${row.fate}: ${row.reason.replaceAll("_", " ")}` : row.fate);

/** The address of a search, in one of the views that take one. */
export const searchFor = (values, view = "find") => `#/${view}/${encodeURIComponent(new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined)))}`;

/** Labels, each a link to the episodes that have it. */
export function labels(values) {
  const pairs = Object.entries(values ?? {});
  if (!pairs.length) return shown(null);
  return make("span", {}, pairs.flatMap(([name, value], at) => [at ? ", " : "", make("a", { href: searchFor({ label: name, label_value: value }), title: `episodes with ${name} ${value}` }, seen(`${name} ${value}`))]));
}
