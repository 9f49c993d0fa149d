// The questions `rows` and `neighbours` over an export's table; the words are those of eagle3_assets/view/search.py.
import type { Found, Params, RowLine, Value } from "./data";

export interface Table { rows: number; columns: Record<string, { words?: string[]; at: Value[] }> }
const LIMIT = 100;
const SNIPPET = 60;

const list = (value: Params[string]): string[] => (value === undefined || value === null ? [] : (Array.isArray(value) ? value : [value]).map(String));

export function cell(table: Table, name: string, row: number): Value {
  const column = table.columns[name];
  if (!column) return null;
  const at = column.at[row] ?? null;
  return column.words ? (column.words[at as number] ?? null) : at;
}

type Test = (row: number) => boolean;

function tests(table: Table, params: Params, texts?: Record<string, [string, string]>): Map<string, Test> {
  const out = new Map<string, Test>();
  for (const [name, value] of Object.entries(params)) {
    const bound = name.match(/^(.+)\.(min|max)$/);
    if (bound) {
      const limit = Number(value);
      const low = bound[2] === "min";
      out.set(name, (row) => {
        const found = cell(table, bound[1], row);
        return typeof found === "number" && (low ? found >= limit : found <= limit);
      });
    } else if (name.startsWith("not.")) {
      const chosen = new Set(list(value));
      out.set(name, (row) => !chosen.has(String(cell(table, name.slice(4), row))));
    } else if (table.columns[name]?.words) {
      const chosen = new Set(list(value));
      out.set(name, (row) => chosen.has(String(cell(table, name, row))));
    } else if (name === "id" && value) {
      out.set(name, (row) => String(cell(table, "sample_id", row)).startsWith(String(value)));
    } else if (name === "q" && value) {
      const wanted = String(value).toLowerCase();
      const places = params.in === "prompt" ? [0] : params.in === "answer" ? [1] : [0, 1];
      out.set(name, (row) => {
        const text = texts?.[String(cell(table, "key", row))];
        return text !== undefined && places.some((place) => text[place].includes(wanted));
      });
    }
  }
  return out;
}

function chosen(table: Table, all: Map<string, Test>, but = ""): number[] {
  const asked = [...all].filter(([name]) => name !== but).map(([, test]) => test);
  const out: number[] = [];
  for (let row = 0; row < table.rows; row++) if (asked.every((test) => test(row))) out.push(row);
  return out;
}

function ordered(table: Table, rows: number[], sort: string): number[] {
  if (!sort) return rows;
  const down = sort.startsWith("-");
  const name = down ? sort.slice(1) : sort;
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [cell(table, name, a), cell(table, name, b)];
    if (x === y) return a - b;
    if (x === null) return 1;
    if (y === null) return -1;
    return (x < y ? -1 : 1) * sign;
  });
}

export function answerFromTable(name: string, params: Params, table: Table, texts?: Record<string, [string, string]>): Found | unknown {
  if (name === "neighbours") {
    const { key, ...rest } = params;
    return { list: around(table, String(key), rest, texts), failing: around(table, String(key), { failing: "yes" }) };
  }
  const all = tests(table, params, texts);
  const rows = ordered(table, chosen(table, all), String(params.sort ?? ""));
  const offset = Number(params.offset ?? 0);
  const names = Object.keys(table.columns);
  const lines = rows.slice(offset, offset + Number(params.limit ?? LIMIT)).map((row) => {
    const line = Object.fromEntries(names.map((column) => [column, cell(table, column, row)])) as RowLine;
    if (params.q) line.snippet = snippet(texts?.[line.key], String(params.q).toLowerCase());
    return line;
  });
  const facets: Found["facets"] = {};
  for (const [facet, column] of Object.entries(table.columns)) {
    if (!column.words) continue;
    const counts = new Map<string, number>();
    for (const row of chosen(table, all, facet)) {
      const value = String(cell(table, facet, row));
      counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    facets[facet] = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 40);
  }
  return { total: rows.length, offset, rows: lines, facets };
}

function snippet(text: [string, string] | undefined, wanted: string): string {
  for (const place of [1, 0]) {
    const at = text ? text[place].indexOf(wanted) : -1;
    const start = Math.max(0, at - SNIPPET);
    if (text && at >= 0) return text[place].slice(start, start + 2 * SNIPPET + wanted.length);
  }
  return "";
}

function around(table: Table, key: string, params: Params, texts?: Record<string, [string, string]>) {
  const rows = ordered(table, chosen(table, tests(table, params, texts)), String(params.sort ?? ""));
  const place = table.columns.key.at.indexOf(key);
  const at = rows.indexOf(place);
  const name = (row: number | undefined) => (row === undefined ? null : cell(table, "key", row));
  if (at >= 0) return { previous: name(rows[at - 1]), next: name(rows[at + 1]) };
  const sorted = [...rows].sort((a, b) => a - b);
  return { previous: name(sorted.filter((row) => row < place).pop()), next: name(sorted.find((row) => row > place)) };
}
