// All rows: filters on the left, the table on the right; every choice stands in the address.
import { useEffect, useRef, useState } from "preact/hooks";
import { go, link, rowLink } from "./address";
import { ask, exported, type Column, type Found, type Params, type RowLine, type State, type Value } from "./data";
import { Grade, number, percent, seen, useAnswer, useKeys, usd, Waiting } from "./parts";

const SIZE = 100;
const OPEN = ["dataset", "grade", "failing", "provider", "check"];
const list = (value: Params[string]): string[] => (value === undefined || value === null ? [] : (Array.isArray(value) ? value : [value]).map(String));

function without(params: Params, ...names: string[]): Params {
  return Object.fromEntries(Object.entries(params).filter(([name]) => !names.includes(name)));
}

function Facet({ column, counts, params, change }: { column: Column; counts: [string, number][]; params: Params; change: (params: Params) => void }) {
  const chosen = list(params[column.name]);
  const lacking = chosen.filter((value) => !counts.some(([name]) => name === value)).map((value): [string, number] => [value, 0]);
  const all = [...counts, ...lacking];
  if (all.length < 2 && !chosen.length) return null;
  const toggle = (value: string) => {
    const now = chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value];
    change({ ...without(params, column.name, "offset"), ...(now.length ? { [column.name]: now } : {}) });
  };
  return (
    <details class="facet" open={OPEN.includes(column.name) || chosen.length > 0}>
      <summary title={column.help}>{column.title}{chosen.length ? <span class="badge">{chosen.length}</span> : null}</summary>
      <fieldset>
        <legend class="hidden">{column.title}</legend>
        {all.map(([value, count]) => (
          <label><input type="checkbox" checked={chosen.includes(value)} onChange={() => toggle(value)} />
            <span class="value">{seen(value) || <i>none</i>}</span><span class="count">{number(count)}</span></label>
        ))}
      </fieldset>
    </details>
  );
}

function Range({ column, params, change }: { column: Column; params: Params; change: (params: Params) => void }) {
  const set = (bound: string) => (event: Event) => {
    const value = (event.target as HTMLInputElement).value.trim();
    const name = `${column.name}.${bound}`;
    change({ ...without(params, name, "offset"), ...(value === "" || Number.isNaN(Number(value)) ? {} : { [name]: value }) });
  };
  const box = (bound: string, words: string) => (
    <input type="text" inputMode="decimal" aria-label={`${column.title} ${words}`} placeholder={words} value={String(params[`${column.name}.${bound}`] ?? "")} onChange={set(bound)} />
  );
  return <div class="range" title={column.help}><span>{column.title}</span>{box("min", "at least")}{box("max", "at most")}</div>;
}

function Cell({ column, row, list: query, root }: { column: Column; row: RowLine; list: Params; root?: Value }) {
  const value = row[column.name];
  if (column.name === "sample_id") return <td><a href={rowLink(row.key, query, root)}><code>{seen(String(value).slice(0, 12))}</code></a>{row.turn ? <span class="muted">/{row.turn}</span> : null}</td>;
  if (column.name === "grade" || column.name === "model_grade") return <td>{value ? <Grade grade={value} /> : null}</td>;
  if (column.name === "p_exact") return <td class="n">{typeof value === "number" ? value.toFixed(4) : "–"}</td>;
  if (column.name === "cost_usd") return <td class="n">{usd(value)}</td>;
  if (column.name === "mean_logprob") return <td class="n">{typeof value === "number" ? value.toFixed(3) : ""}</td>;
  if (column.name.startsWith("residual")) return <td class={`n ${value ? "stop" : ""}`}>{typeof value === "number" ? (value > 0 ? `+${value}` : value) : ""}</td>;
  if (column.kind === "number") return <td class="n">{number(value)}</td>;
  if (column.name === "reason") return <td class="reason"><span title={seen(String(value ?? ""))}>{seen(String(value ?? "").slice(0, 140))}</span></td>;
  if (column.name === "failing") return <td>{value === "yes" ? <span class="stop">yes</span> : <span class="muted">no</span>}</td>;
  return <td>{seen(String(value ?? ""))}</td>;
}

export function Rows({ params, version, state }: { params: Params; version: number; state: State }) {
  const { value: found, error, stale } = useAnswer(() => ask<Found>("rows", { ...params, limit: SIZE }), [JSON.stringify(params), version, state.reading.ready]);
  const [shown, show] = useState<string[]>(() => { try { return JSON.parse(localStorage.getItem("eagle3-columns") ?? "[]"); } catch { return []; } });
  const [at, move] = useState(-1);
  const search = useRef<HTMLInputElement>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const change = (next: Params) => go(link("rows", next));
  const offset = Number(params.offset ?? 0);
  const query = without(params, "offset", "root");
  const page = (way: number) => {
    const next = offset + way * SIZE;
    if (found && next >= 0 && next < found.total) change({ ...params, offset: next || undefined });
  };
  useEffect(() => move(-1), [JSON.stringify(params)]);
  useEffect(() => { body.current?.rows[at]?.querySelector("a")?.focus(); }, [at]);
  useKeys({
    "/": () => search.current?.focus(),
    j: () => move((n) => Math.min(n + 1, (found?.rows.length ?? 1) - 1)), k: () => move((n) => Math.max(n - 1, 0)),
    n: () => page(1), p: () => page(-1), f: () => change({ ...without(params, "failing", "offset"), ...(params.failing ? {} : { failing: "yes" }) }),
    x: () => change({ root: params.root }),
  });
  const columns = state.columns.filter((column) => column.name !== "turn" && (shown.length ? shown.includes(column.name) : column.shown));
  const sort = String(params.sort ?? "");
  const sorted = (column: Column) => {
    const next = sort === column.name ? `-${column.name}` : sort === `-${column.name}` ? undefined : column.name;
    change({ ...without(params, "sort", "offset"), ...(next ? { sort: next } : {}) });
  };
  const pick = (name: string) => {
    const now = columns.map((column) => column.name);
    const next = now.includes(name) ? now.filter((one) => one !== name) : [...now, name];
    localStorage.setItem("eagle3-columns", JSON.stringify(next));
    show(next);
  };
  const reading = state.reading;
  const part = reading.texts_of ? reading.texts / reading.texts_of : 0;
  return (
    <>
      <h1>Rows</h1>
      <form class="search" role="search" onSubmit={(event) => { event.preventDefault(); change({ ...without(params, "q", "offset"), ...(search.current?.value ? { q: search.current.value } : {}) }); }}>
        <label class="hidden" for="q">Find in prompts and answers</label>
        <input id="q" ref={search} type="search" placeholder={exported ? "find in the exported rows' prompts and answers" : "find in prompts and answers   ( / )"} defaultValue={String(params.q ?? "")} key={String(params.q ?? "")} />
        <label class="hidden" for="in">where</label>
        <select id="in" value={String(params.in ?? "both")} onChange={(event) => change({ ...without(params, "in", "offset"), ...(event.currentTarget.value === "both" ? {} : { in: event.currentTarget.value }) })}>
          <option value="both">both</option><option value="prompt">prompt</option><option value="answer">answer</option>
        </select>
        <button type="submit">Find</button>
      </form>
      {reading.ready ? null : <p class="muted" role="status">Texts are being read for the search: {percent(part, 0)}. Until then it finds what was read.</p>}
      <div class="split">
        <aside aria-label="filters">
          <details class="filters" open={innerWidth > 900}>
            <summary>Filters</summary>
            <p><a href={link("rows", { root: params.root })}>clear all</a> <span class="muted">( x )</span></p>
            <label class="id">sample id begins with<input type="text" value={String(params.id ?? "")} onChange={(event) => change({ ...without(params, "id", "offset"), ...(event.currentTarget.value ? { id: event.currentTarget.value } : {}) })} /></label>
            {found ? state.columns.filter((column) => column.kind === "facet").map((column) => <Facet column={column} counts={found.facets[column.name] ?? []} params={params} change={change} />) : null}
            <details class="facet"><summary>numbers</summary>
              {state.columns.filter((column) => column.kind === "number").map((column) => <Range column={column} params={params} change={change} />)}
            </details>
          </details>
        </aside>
        <div class="main">
          {error ? <Waiting error={error} /> : null}
          <div class="bar-line">
            <p role="status" class={stale ? "muted" : ""}>{found ? `${number(found.total)} rows${params.q ? " with these words" : ""}` : "Looking …"}</p>
            <details class="columns"><summary>columns</summary><fieldset><legend class="hidden">columns</legend>
              {state.columns.filter((column) => column.name !== "turn").map((column) => <label title={column.help}><input type="checkbox" checked={columns.includes(column)} onChange={() => pick(column.name)} /> {column.title}</label>)}
            </fieldset></details>
            <nav class="pager" aria-label="pages of rows">
              <button type="button" disabled={offset <= 0} onClick={() => page(-1)}>previous</button>
              <span>{found && found.total ? `${number(offset + 1)}–${number(offset + found.rows.length)}` : "0"}</span>
              <button type="button" disabled={!found || offset + SIZE >= found.total} onClick={() => page(1)}>next</button>
            </nav>
          </div>
          <div class="scroll tall" role="group" tabIndex={0} aria-label="table of rows">
            <table class="rows">
              <thead><tr>{columns.map((column) => {
                const way = sort === column.name ? "ascending" : sort === `-${column.name}` ? "descending" : "none";
                return <th scope="col" aria-sort={way} class={column.kind === "number" ? "n" : ""}>
                  <button type="button" title={column.help} onClick={() => sorted(column)}>{column.title}{way === "ascending" ? " ▲" : way === "descending" ? " ▼" : ""}</button></th>;
              })}</tr></thead>
              <tbody ref={body}>
                {(found?.rows ?? []).map((row, k) => (
                  <>
                    <tr class={k === at ? "at" : ""}>{columns.map((column) => <Cell column={column} row={row} list={query} root={params.root as Value} />)}</tr>
                    {row.snippet ? <tr class="snippet"><td colSpan={columns.length}><Snippet text={row.snippet} words={String(params.q)} /></td></tr> : null}
                  </>
                ))}
              </tbody>
            </table>
            {found && !found.total ? <p class="muted inside">No row is like that. <a href={link("rows", { root: params.root })}>Clear all filters</a>.</p> : null}
          </div>
        </div>
      </div>
    </>
  );
}

function Snippet({ text, words }: { text: string; words: string }) {
  const at = text.indexOf(words.toLowerCase());
  const clean = (part: string) => seen(part.replace(/[ \t\r\n]+/g, " "));
  if (at < 0) return <span>{clean(text)}</span>;
  return <span>… {clean(text.slice(0, at))}<mark>{clean(text.slice(at, at + words.length))}</mark>{clean(text.slice(at + words.length))} …</span>;
}
