// Where answers come from: the server's /api, or the scripts of an export's data folder. Pages do not know which.
import { answerFromTable, type Table } from "./table";

export type Value = string | number | boolean | null;
export type Params = Record<string, Value | Value[] | undefined>;
export type Span = [kind: string, text: string];
export interface Column { name: string; kind: "facet" | "number" | "text"; title: string; help: string; shown: boolean }
export interface State {
  version: number; rows: number; root: string; roots: string[]; columns: Column[]; export?: string; pages?: number;
  reading: { journals: number; journals_of: number; texts: number; texts_of: number; ready: boolean };
}
export type RowLine = Record<string, Value> & { key: string; snippet?: string };
export interface Found { total: number; offset: number; rows: RowLine[]; facets: Record<string, [string, number][]> }

export const exported = document.documentElement.dataset.export === "1";
const cache = new Map<string, Promise<unknown>>();

export function words(params: Params): string {
  const out = new URLSearchParams();
  for (const name of Object.keys(params).sort()) {
    const value = params[name];
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null) out.append(name, String(one));
  }
  return out.toString();
}

/** The answer to a question of `eagle3_assets/view/pages.py`. Rejects with an Error that a person can read. */
export function ask<T>(name: string, params: Params = {}): Promise<T> {
  if (exported) return fromExport(name, params) as Promise<T>;
  return fromServer(name, words(params)) as Promise<T>;
}

/** As `ask`, kept: for answers that do not change while a page is open. */
export function askOnce<T>(name: string, params: Params = {}): Promise<T> {
  const key = `${name}?${words(params)}`;
  let found = cache.get(key);
  if (!found) {
    found = ask(name, params);
    cache.set(key, found);
    found.catch(() => cache.delete(key));
    if (cache.size > 200) cache.delete(cache.keys().next().value as string);
  }
  return found as Promise<T>;
}

export function forget(): void { cache.clear(); }

async function fromServer(name: string, query: string): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(`./api/${name}?${query}`);
  } catch {
    throw new Error("The viewer does not answer: was `eagle3 view` ended? Start it again, then load this page again.");
  }
  const answer = await response.json().catch(() => ({ error: `The viewer answered with status ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error ?? `status ${response.status}`);
  return answer;
}

// ------------------------------------------------------------------------------------------------ an export
const store = new Map<string, unknown>();
const loading = new Map<string, Promise<void>>();
(globalThis as Record<string, unknown>).eagle3_put = (text: string) => {
  for (const [name, value] of Object.entries(JSON.parse(text) as Record<string, unknown>)) store.set(name, value);
};

function load(file: string): Promise<void> {
  let found = loading.get(file);
  if (!found) {
    found = new Promise<void>((done, failed) => {
      const script = document.createElement("script");
      script.src = `./data/${file}.js`;
      script.onload = () => done();
      script.onerror = () => failed(new Error(`data/${file}.js is missing from this folder: was the whole folder sent?`));
      document.head.append(script);
    });
    loading.set(file, found);
  }
  return found;
}

function plain(name: string, params: Params): string {
  const kept = Object.keys(params).sort().filter((key) => key !== "root" && params[key] !== undefined && params[key] !== "" && params[key] !== null);
  return `${name}?${kept.map((key) => `${key}=${params[key]}`).join("&")}`;
}

async function group(name: string): Promise<boolean> {
  await load("index");
  const number = (store.get("index") as Record<string, number>)[name];
  if (number === undefined) return false;
  await load(String(number));
  return true;
}

async function fromExport(name: string, params: Params): Promise<unknown> {
  if (name === "rows" || name === "neighbours") {
    await group("table");
    if (params.q) await group("texts");
    return answerFromTable(name, params, store.get("table?") as Table, store.get("texts?") as Record<string, [string, string]>);
  }
  const of = params.key !== undefined ? `row/${params.key}` : name === "pair" ? "compare" : name;
  const missing = params.key !== undefined
    ? "This row has no page in this export, which holds the failing rows and some of the others. `eagle3 show` prints it from the campaign's data."
    : "This is not in the export.";
  if (!(await group(of))) throw new Error(missing);
  const found = store.get(plain(name, params)) as { error?: string } | undefined;
  if (found === undefined) throw new Error(missing);
  if (found.error) throw new Error(found.error);
  return found;
}
