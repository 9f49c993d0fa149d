// Providers: what each costs, how fast it is, how it fails, what was learned of it, and which answers decided that.
import { useMemo, useState } from "preact/hooks";
import { link, rowLink } from "./address";
import { ask, askOnce, type Params, type Value } from "./data";
import { Bar, Chart, number, percent, Scroll, Section, useAnswer, usd, Waiting, when } from "./parts";

interface Window {
  from: number; to: number; stream: boolean; rows: number; explained: number; standing: string; why: string; reading: string; spacing: string; bill: string; arguments: string; tool_ids: string;
  edges: Record<string, { mechanism?: string; model?: Record<string, number> }>; margins: [string, number][]; damage: Record<string, number>;
  strata: Record<string, { rows: number; explained: number; prompt: { form?: string; offset?: number; decided?: boolean } }>;
}
interface Provider {
  name: string; label: string; standing: string | null; calls: (Record<string, number | null> & { seconds: number[] | null }) | null; rows: (Record<string, number | null> & { grades: string[] }) | null;
  failures: { reason: string; status: number; calls: number }[]; endpoints: Record<string, Value>[]; windows: Window[]; time: Record<string, (number | null)[]> | null; usd_per_million_trainable: number | null;
}
interface Habit { fields?: number; share?: number; known?: boolean; runs?: Record<string, number> }
interface Page { providers: Provider[]; times: number[]; model: Record<string, Habit & Record<string, unknown>>; edges: string[]; problems: string[] }
interface Deciding { looked_at: number; met: number; rivals: { name: string; margin: number; against: number }[]; rows: { key: string | null; sample_id: string; turn: number; dataset: string; shard: string; bill: number; rivals: number }[] }

const run = (text: string): string => (text === "" ? "nothing" : text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥"));
const stand = (standing: string): string => (standing === "decided" ? "pass" : standing === "not decided" ? "warn" : "stop");

export function Providers({ params, path, version }: { params: Params; path: string[]; version: number }) {
  const root = params.root as Value;
  const { value: page, error } = useAnswer(() => ask<Page>("providers", { root }), [root, version]);
  if (!page) return <><h1>Providers</h1><Waiting error={error} /></>;
  const shown = path[0] ? page.providers.filter((one) => one.name === path[0]) : page.providers;
  return (
    <>
      <h1>Providers {path[0] ? <small><a href={link("providers", { root })}>all of them</a></small> : null}</h1>
      {page.problems.length ? <ul class="error" role="alert">{page.problems.map((problem) => <li>{problem}</li>)}</ul> : null}
      <Section title="Side by side">
        <Scroll label="providers"><table>
          <thead><tr><th scope="col">provider</th><th scope="col">standing</th><th scope="col" class="n">calls</th><th scope="col" class="n">failed</th><th scope="col" class="n">rows</th><th scope="col" class="n">failing</th><th scope="col" class="n">equal to bill</th>
            <th scope="col" class="n">expected exact</th><th scope="col" class="n">median s</th><th scope="col" class="n">p90 s</th><th scope="col" class="n">ids a second</th><th scope="col" class="n">USD</th><th scope="col" class="n">USD a million trained</th><th scope="col">list price (in, out)</th></tr></thead>
          <tbody>{page.providers.map((one) => {
            const { calls, rows } = one;
            const failed = calls ? (calls.calls ?? 0) - (calls.finished ?? 0) : 0;
            return <tr>
              <th scope="row"><a href={link("providers", { root }, one.name)}>{one.label}</a></th>
              <td>{one.standing ? <span class={stand(one.standing)}>{one.standing}</span> : <span class="muted">not learned</span>}</td>
              <td class="n">{number(calls?.calls)}</td><td class="n">{calls ? (failed ? `${number(failed)} (${percent(failed / (calls.calls ?? 1))})` : "0") : "–"}</td>
              <td class="n">{rows ? <a href={link("rows", { provider: one.name, root })}>{number(rows.rows)}</a> : "–"}</td>
              <td class="n">{rows?.failing ? <a href={link("rows", { provider: one.name, failing: "yes", root })}>{number(rows.failing)}</a> : rows ? "0" : "–"}</td>
              <td class="n">{rows?.billed ? percent((rows.equal ?? 0) / rows.billed) : "no bill"}</td><td class="n">{rows ? percent(rows.expected_exact, 2) : "–"}</td>
              <td class="n">{number(calls?.seconds?.[1], 1)}</td><td class="n">{number(calls?.seconds?.[2], 1)}</td><td class="n">{number(calls?.tokens_per_s, 1)}</td>
              <td class="n">{usd(calls?.usd)}</td><td class="n">{one.usd_per_million_trainable === null ? "–" : one.usd_per_million_trainable.toFixed(2)}</td>
              <td>{one.endpoints.map((endpoint) => <div title={String(endpoint.why ?? "")}>{String(endpoint.prompt_usd_per_million)}, {String(endpoint.completion_usd_per_million)} <span class={endpoint.verdict === "taken" ? "muted" : "warn"}>{String(endpoint.tag)} {endpoint.verdict === "taken" ? "" : "refused"}</span></div>)}</td>
            </tr>;
          })}</tbody>
        </table></Scroll>
      </Section>
      {path[0] ? null : <Model page={page} />}
      {shown.filter((one) => path[0] || one.windows.length).map((one) => <One one={one} page={page} root={root} />)}
    </>
  );
}

function Model({ page }: { page: Page }) {
  const known = page.edges.filter((edge) => page.model[edge]);
  if (!known.length) return null;
  return (
    <Section title="What the model itself writes at the edges" open={false}>
      <Scroll label="what the model writes"><table><thead><tr><th scope="col">edge</th><th scope="col" class="n">texts seen</th><th scope="col" class="n">with whitespace</th><th scope="col">runs</th></tr></thead>
        <tbody>{known.map((edge) => { const habit = page.model[edge]; return <tr><th scope="row">{edge.replace("_", " ")}</th><td class="n">{number(habit.fields)}</td><td class="n">{percent(habit.share)}</td>
          <td>{Object.entries(habit.runs ?? {}).map(([text, count]) => <><code>{run(text)}</code> {number(count)} </>)}</td></tr>; })}</tbody></table></Scroll>
    </Section>
  );
}

function One({ one, page, root }: { one: Provider; page: Page; root: Value }) {
  const series = useMemo(() => one.time ? [
    { label: "calls", values: one.time.calls, colour: "--accent", bars: true }, { label: "failed", values: one.time.failed, colour: "--stop", bars: true },
    { label: "median seconds", values: one.time.seconds, colour: "--warm", scale: "s" },
  ] : [], [one]);
  return (
    <Section title={one.label} note={one.windows.length ? `${one.windows.length} windows` : undefined}>
      {one.time && page.times.length ? <Chart x={page.times} series={series} time label={`Calls, failures and median latency of ${one.label} over time`} /> : null}
      {one.failures.length ? <Scroll label="how calls failed"><table><thead><tr><th scope="col">how it failed</th><th scope="col" class="n">status</th><th scope="col" class="n">calls</th></tr></thead>
        <tbody>{one.failures.map((line) => <tr><td>{line.reason || "no reason"}</td><td class="n">{line.status}</td><td class="n">{number(line.calls)}</td></tr>)}</tbody></table></Scroll> : one.calls ? <p class="muted">No call of it failed.</p> : null}
      {one.windows.map((window, k) => <WindowBox window={window} number_={k} provider={one.name} root={root} />)}
      {!one.windows.length ? <p class="muted">Nothing was learned of it: it returned ids, or answered too seldom.</p> : null}
    </Section>
  );
}

function WindowBox({ window: told, number_, provider, root }: { window: Window; number_: number; provider: string; root: Value }) {
  const [open, opened] = useState(false);
  return (
    <div class="window">
      <h3><span class={stand(told.standing)}>{told.standing}</span> {when(told.from)} – {when(told.to)} <small>{told.stream ? "streamed" : "whole"} answers</small></h3>
      <p>{told.why}</p>
      <p><Bar share={told.explained / Math.max(1, told.rows)} title={`${told.explained} of ${told.rows} bills met`} /> {number(told.explained)} of {number(told.rows)} bills met by <code>{told.reading}</code>; the bill counts {told.bill}; arguments {told.arguments}; ids of calls {told.tool_ids}</p>
      <Scroll label="what is done at the edges"><table><thead><tr>{Object.keys(told.edges).map((edge) => <th scope="col">{edge.replace("_", " ")}</th>)}</tr></thead>
        <tbody><tr>{Object.values(told.edges).map((edge) => <td><span class={`mechanism m-${edge.mechanism ?? "keep"}`}>{edge.mechanism ?? "keep"}</span> {edge.model ? <span class="muted">{Object.entries(edge.model).map(([text, share]) => `${run(text)} ${percent(share)}`).join(", ")}</span> : null}</td>)}</tr></tbody></table></Scroll>
      <p class="muted">{Object.entries(told.strata).map(([name, stratum]) => `${name === "tools" ? "with tools" : "without tools"}: ${stratum.explained} of ${stratum.rows}, prompt ${stratum.prompt.form ?? "?"}${stratum.prompt.decided ? "" : " (not decided)"}`).join(" · ")}</p>
      <p class="muted">Changed on the way (estimate): {Object.entries(told.damage).map(([kind, share]) => `${kind} ${percent(share, 2)}`).join(", ")}.</p>
      <details onToggle={(event) => event.currentTarget.open && opened(true)}>
        <summary>The answers that decided, against {told.margins.length} rivals</summary>
        {open ? <Decided provider={provider} number_={number_} root={root} /> : null}
      </details>
    </div>
  );
}

function Decided({ provider, number_, root }: { provider: string; number_: number; root: Value }) {
  const { value: found, error } = useAnswer(() => askOnce<Deciding>("deciding", { provider, window: number_, root }), [provider, number_, root]);
  if (!found) return <Waiting error={error} />;
  return (
    <div class="two">
      <div>
        <p>Of {number(found.looked_at)} answers observed again, {number(found.met)} bills are met by the reading. A rival is spoken against by each answer whose bill it does not meet.</p>
        <Scroll label="rivals"><table><thead><tr><th scope="col">rival</th><th scope="col" class="n">nats behind</th><th scope="col" class="n">bills it misses</th></tr></thead>
          <tbody>{found.rivals.map((line) => <tr><th scope="row"><code>{line.name}</code></th><td class="n">{line.margin.toFixed(1)}</td><td class="n">{number(line.against)}</td></tr>)}</tbody></table></Scroll>
      </div>
      <Scroll label="answers that decided">
        <table><thead><tr><th scope="col">answer</th><th scope="col">of</th><th scope="col" class="n">billed</th><th scope="col" class="n">rivals it contradicts</th></tr></thead>
          <tbody>{found.rows.map((line) => <tr><th scope="row">{line.key ? <a href={rowLink(line.key, { provider }, root)}><code>{line.sample_id.slice(0, 12)}</code></a> : <code>{line.sample_id.slice(0, 12)}</code>}</th>
            <td>{line.dataset} {line.key ? "" : <span class="muted">{line.shard} (pilot)</span>}</td><td class="n">{number(line.bill)}</td><td class="n">{number(line.rivals)}</td></tr>)}</tbody></table>
        {found.rows.length ? null : <p class="muted">No single bill tells the reading from its rivals: they differ in what the model is known to write.</p>}
      </Scroll>
    </div>
  );
}
