// Two campaigns, or two providers, on the prompts that both were asked.
import { useState } from "preact/hooks";
import { go, link, rowLink } from "./address";
import { ask, askOnce, exported, type Params, type Span, type State, type Value } from "./data";
import { Grade, number, percent, Scroll, Section, seen, Spans, useAnswer, usd, Waiting } from "./parts";

type Line = Record<string, Value>;
interface Page { sides: { name: string; provider: string }[]; totals: Record<string, number | null>[]; pairs: number; grades: [string, string, number][]; figures: Record<string, number | null>[]; lines: [Line, Line][] }
interface Pair { found: boolean[]; texts: [Span[], Span[]]; spans: Span[] }

function Side({ which, params, state, names }: { which: "left" | "right"; params: Params; state: State; names: string[] }) {
  const set = (name: string) => (event: Event) => go(link("compare", { ...params, [name]: (event.target as HTMLSelectElement).value || undefined }));
  return (
    <fieldset class="side-choice"><legend>{which}</legend>
      <label>campaign <select value={String(params[which] ?? state.roots[0])} onChange={set(which)}>{state.roots.map((name) => <option value={name}>{seen(name)}</option>)}</select></label>
      <label>provider <select value={String(params[`${which}.provider`] ?? "")} onChange={set(`${which}.provider`)}>{exported ? null : <option value="">everybody</option>}{names.map((name) => <option value={name}>{seen(name)}</option>)}</select></label>
    </fieldset>
  );
}

export function Compare({ params, state, version }: { params: Params; state: State; version: number }) {
  const roots = [params.left, params.right].map((name) => (name ?? state.roots[0]) as Value);
  const left = useAnswer(() => ask<{ providers: { name: string; calls: { finished: number } | null }[] }>("providers", { root: roots[0] }), [roots[0], version]);
  const right = useAnswer(() => ask<{ providers: { name: string; calls: { finished: number } | null }[] }>("providers", { root: roots[1] }), [roots[1], version]);
  const names = [left, right].map((side) => (side.value?.providers ?? []).filter((one) => one.calls?.finished).map((one) => one.name));
  const same = roots[0] === roots[1];
  const chosen: Params = { ...params };
  if (same && !params["left.provider"] && !params["right.provider"]) { chosen["left.provider"] = names[0][0]; chosen["right.provider"] = names[1][1]; }
  const ready = Boolean(left.value && right.value);
  const asked: Params = { left: chosen.left, right: chosen.right, "left.provider": chosen["left.provider"], "right.provider": chosen["right.provider"] };
  const swap = exported && names[0].indexOf(String(asked["left.provider"])) > names[0].indexOf(String(asked["right.provider"]));
  const question: Params = swap ? { "left.provider": asked["right.provider"], "right.provider": asked["left.provider"] } : exported ? { "left.provider": asked["left.provider"], "right.provider": asked["right.provider"] } : asked;
  const { value: page, error } = useAnswer(() => (ready ? ask<Page>("compare", question) : new Promise<Page>(() => undefined)), [JSON.stringify(question), ready, version]);
  return (
    <>
      <h1>Compare</h1>
      <form class="sides" onSubmit={(event) => event.preventDefault()}><Side which="left" params={chosen} state={state} names={names[0]} /><Side which="right" params={chosen} state={state} names={names[1]} /></form>
      {error ? <Waiting error={error} /> : page ? <Both page={page} question={question} roots={swap ? [roots[1], roots[0]] : roots} /> : <Waiting />}
    </>
  );
}

const ROWS: [string, string, (value: number | null, of: Record<string, number | null>) => string][] = [
  ["rows", "rows", (value) => number(value)], ["expected_exact", "expected exact", (value) => percent(value, 2)],
  ["failing", "failing", (value, of) => `${number(value)} (${percent((value ?? 0) / Math.max(1, of.rows ?? 1))})`], ["equal", "equal to bill", (value, of) => (of.billed ? percent((value ?? 0) / of.billed) : "no bill")],
  ["generated", "median ids of an answer", (value) => number(value)], ["cut", "cut by length", (value) => percent(value)], ["usd", "USD", (value) => usd(value)], ["mean_logprob", "mean log-prob", (value) => (value === null ? "–" : value.toFixed(3))],
];

function Both({ page, question, roots }: { page: Page; question: Params; roots: Value[] }) {
  const names = page.sides.map((side) => side.provider || side.name);
  const head = names[0] === names[1] ? page.sides.map((side) => `${side.name} ${side.provider}`) : names;
  return (
    <>
      <div class="two">
        <Section title="All rows of each">
          <Scroll label="all rows of each"><table><thead><tr><th scope="col">figure</th>{head.map((name) => <th scope="col" class="n">{name}</th>)}</tr></thead>
            <tbody>{ROWS.map(([key, title, shown]) => <tr><th scope="row">{title}</th>{page.totals.map((of) => <td class="n">{shown(of[key], of)}</td>)}</tr>)}</tbody></table></Scroll>
        </Section>
        <Section title="The same prompts" note={`${number(page.pairs)} that both answered`}>
          {page.pairs ? <Scroll label="the same prompts"><table><thead><tr><th scope="col">mean of an answer</th>{head.map((name) => <th scope="col" class="n">{name}</th>)}</tr></thead>
            <tbody>{([["tokens", "billed ids", 1], ["seconds", "seconds", 1], ["cost_usd", "USD", 6], ["p_exact", "p exact", 4]] as [string, string, number][]).map(([key, title, digits]) => <tr><th scope="row">{title}</th>{page.figures.map((of) => <td class="n">{of[key] === null ? "–" : number(of[key], digits)}</td>)}</tr>)}</tbody></table></Scroll>
            : <p class="muted">They share no prompt: choose another side. Providers of one campaign meet in the pilot, campaigns where they took the same prompts.</p>}
          {page.grades.length ? <p>{page.grades.map(([a, b, n]) => <span class="grades"><Grade grade={a} /> → <Grade grade={b} /> {number(n)} </span>)}</p> : null}
        </Section>
      </div>
      <Section title="Prompt by prompt" note={page.lines.length < page.pairs ? `the ${page.lines.length} that differ most` : "those that differ most come first"}>
        <ul class="pairs">{page.lines.map(([a, b]) => <PairLine a={a} b={b} head={head} question={question} roots={roots} />)}</ul>
      </Section>
    </>
  );
}

function PairLine({ a, b, head, question, roots }: { a: Line; b: Line; head: string[]; question: Params; roots: Value[] }) {
  const [open, opened] = useState(false);
  const one = (line: Line, k: number) => (
    <span class="pair-side"><b>{head[k]}</b> {line.pilot ? <span class="muted">pilot</span> : <Grade grade={line.grade} />} {number(line.tokens)} ids, {number(line.seconds, 1)} s, {usd(line.cost_usd)} USD</span>
  );
  return (
    <li><details onToggle={(event) => event.currentTarget.open && opened(true)}>
      <summary><code>{String(a.sample_id).slice(0, 8)}</code> <span class="muted">{seen(String(a.dataset))}</span> {one(a, 0)} {one(b, 1)}</summary>
      <p>{[a, b].map((line, k) => (line.key ? <><a href={rowLink(String(line.key), {}, roots[k])}>the row of {head[k]}</a> </> : null))}</p>
      {open ? <Texts asked={String(a.asked)} question={question} head={head} /> : null}
    </details></li>
  );
}

function Texts({ asked, question, head }: { asked: string; question: Params; head: string[] }) {
  const { value, error } = useAnswer(() => askOnce<Pair>("pair", { ...question, asked }), [asked, JSON.stringify(question)]);
  if (!value) return <Waiting error={error} />;
  return <div class="two">{value.texts.map((spans, k) => <div><h3>{head[k]}</h3><Spans spans={spans} label={`answer of ${head[k]}`} /></div>)}</div>;
}
