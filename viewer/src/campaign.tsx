// The campaign at a glance: what to do next, the flow, money, datasets, checks.
import { link, rowLink } from "./address";
import { ask, exported, type Params, type Value } from "./data";
import { Bar, Facts, Grade, gradeWords, number, percent, Scroll, Section, useAnswer, usd, Waiting, when } from "./parts";

interface Stage { stage: string; current?: number; outdated?: number; missing?: number; damaged?: number; when?: number; numbers?: Record<string, number> }
interface Dataset {
  dataset: string; rows: number; prompts: number | null; tokens?: number; generated?: number; supervised?: number; cost_usd?: number; failing?: number;
  kept?: number; kept_exact?: number; billed?: number; equal?: number; judged?: number; report: { passed: boolean; words: string[] } | null;
}
interface Check { stage: string; dataset: string; check: string; severity: string; stops: boolean; message: string; shards: string[]; keys: [string, string][] }
interface Page {
  name: string; title: string | null; root: string; demo: boolean; flow: { step: string; stages: Stage[] }[]; datasets: Dataset[]; checks: Check[];
  money: Record<string, number | null> & { scopes: [string, number][] }; grades: { dataset: string; grade: string; rows: number }[];
  waivers: Record<string, string>[]; next: { words: string; command?: string; query?: string }[]; problems: string[];
}

const NAMES: Record<string, string> = {
  tokenizer_probe: "tokenizer probe", wire_profiles: "wire profiles", vocab_map: "vocabulary map", hidden_states: "hidden states",
  handoff_tokens: "tokens", handoff_speculators: "for speculators", handoff_specforge: "for SpecForge",
};
const WHERE: Record<string, string> = { tokens: "rows", answers: "rows", wire_profiles: "providers", endpoints: "providers", pilot: "providers" };

function state(stage: Stage): [string, string] {
  if (stage.damaged) return ["damaged", `${stage.damaged} damaged`];
  if (stage.missing && !stage.current && !stage.outdated) return ["missing", "not made yet"];
  if (stage.missing) return ["missing", `${stage.missing} missing`];
  if (stage.outdated) return ["outdated", `${stage.outdated} outdated`];
  if (stage.current) return ["current", stage.current > 1 ? `${stage.current} current` : "current"];
  return ["unknown", "not known here"];
}

function Box({ stage, root }: { stage: Stage; root?: Value }) {
  const [kind, says] = state(stage);
  const n = stage.numbers ?? {};
  const figure = n.rows !== undefined ? `${number(n.rows)} rows` : n.finished !== undefined ? `${number(n.finished)} answers`
    : n.selected !== undefined ? `${number(n.selected)} prompts` : n.bytes !== undefined ? `${number(n.bytes / 1e6, 1)} MB` : "";
  const inner = (
    <>
      <span class="stage-name">{NAMES[stage.stage] ?? stage.stage}</span>
      <span class={`state ${kind}`}>{says}</span>
      {figure ? <span class="figure">{figure}</span> : null}
    </>
  );
  const page = WHERE[stage.stage];
  const title = stage.when ? `last made ${when(stage.when)} UTC` : undefined;
  return page ? <a class={`stage ${kind}`} href={link(page, { root: root as string })} title={title}>{inner}</a> : <div class={`stage ${kind}`} title={title}>{inner}</div>;
}

function Money({ page }: { page: Page }) {
  const { spent_usd: spent, reserved_usd: reserved, ambiguous_usd: held, approved_usd: approved, budget_usd: budget, scopes } = page.money;
  const all = Math.max(budget ?? 0, approved ?? 0, spent ?? 0) || 1;
  return (
    <>
      <Facts facts={[
        [page.demo ? "spent (stand-in money)" : "spent", `${usd(spent)} USD`], ["in flight", `${usd(reserved)} USD`], ["held for lost answers", `${usd(held)} USD`],
        ["approved", approved === null ? "nothing yet" : `${usd(approved)} USD`], ["budget", budget === null ? "–" : `${usd(budget)} USD`],
      ]} />
      <p class="meter"><Bar share={(spent ?? 0) / all} title={`${usd(spent)} of ${usd(all)} USD`} /> <span class="muted">{percent((spent ?? 0) / all)} of {usd(all)} USD</span></p>
      {scopes.length ? <p class="muted">{scopes.map(([name, amount]) => `${name} ${usd(amount)}`).join(" · ")}</p> : null}
    </>
  );
}

function Grades({ page, dataset, root }: { page: Page; dataset: Dataset; root?: Value }) {
  const mine = page.grades.filter((line) => line.dataset === dataset.dataset);
  return (
    <span class="grades">
      {mine.map((line) => (
        <a href={link("rows", { dataset: dataset.dataset, grade: line.grade, root: root as string })} title={gradeWords(line.grade)}>
          <Grade grade={line.grade} /> {number(line.rows)}
        </a>
      ))}
    </span>
  );
}

export function Campaign({ params, version }: { params: Params; version: number }) {
  const root = params.root as Value;
  const { value: page, error } = useAnswer(() => ask<Page>("campaign", { root }), [root, version]);
  if (!page) return <Waiting error={error} />;
  const rows = page.datasets.reduce((sum, line) => sum + line.rows, 0);
  const kept = page.datasets.reduce((sum, line) => sum + (line.kept ?? 0), 0);
  const exact = page.datasets.reduce((sum, line) => sum + (line.kept_exact ?? 0), 0);
  const failing = page.datasets.reduce((sum, line) => sum + (line.failing ?? 0), 0);
  const stops = page.checks.filter((line) => line.stops).length;
  return (
    <>
      <h1>{page.name} {page.title ? <small>{page.title}{page.demo ? ", answered by the stand-in" : ""}</small> : null}</h1>
      {page.problems.length ? <ul class="error" role="alert">{page.problems.map((problem) => <li>{problem}</li>)}</ul> : null}
      <div class="tiles">
        <a class="tile" href={link("rows", { root })}><b>{number(rows)}</b> rows</a>
        <a class="tile" href={link("rows", { root, failing: "no" })}><b>{number(kept)}</b> may be trained on</a>
        <div class="tile"><b>{kept ? percent(exact / kept, 2) : "–"}</b> of these expected exact in every id</div>
        <a class="tile" href={link("rows", { root, failing: "yes" })}><b>{number(failing)}</b> failing or left out</a>
        <div class={`tile ${stops ? "bad" : ""}`}><b>{stops}</b> checks stop it, {page.checks.length - stops} warn</div>
      </div>
      <Section title="What to do next">
        <ol class="next">
          {page.next.map((line) => (
            <li>{line.words} {line.command ? <code>{line.command}</code> : null} {line.query ? <a href={`#/rows?${line.query}`}>look at the rows</a> : null}</li>
          ))}
          {page.next.length ? null : <li>Nothing: there are no stages to be made, and no row fails.</li>}
        </ol>
      </Section>
      <Section title="The flow" note={exported ? undefined : <span>{page.root}</span>}>
        <ol class="flow">
          {page.flow.map((step) => <li><h3>{step.step}</h3>{step.stages.map((stage) => <Box stage={stage} root={root} />)}</li>)}
        </ol>
      </Section>
      <Section title="Money"><Money page={page} /></Section>
      <Section title="Datasets">
        <Scroll label="datasets">
          <table>
            <thead><tr><th scope="col">dataset</th><th scope="col">report</th><th scope="col" class="n">rows</th><th scope="col">grades</th>
              <th scope="col" class="n">ids</th><th scope="col" class="n">in the loss</th><th scope="col" class="n">USD</th><th scope="col" class="n">equal to bill</th>
              <th scope="col" class="n">expected exact</th><th scope="col" class="n">failing</th></tr></thead>
            <tbody>
              {page.datasets.map((line) => (
                <tr>
                  <th scope="row"><a href={link("rows", { dataset: line.dataset, root })}>{line.dataset}</a></th>
                  <td>{line.report ? <span class={line.report.passed ? "pass" : "stop"} title={line.report.words.join("\n")}>
                    {exported ? (line.report.passed ? "may go on" : "stop") : <a href={`./reports/${encodeURIComponent(line.dataset)}.html`}>{line.report.passed ? "may go on" : "stop"}</a>}
                  </span> : <span class="muted">none yet</span>}</td>
                  <td class="n">{number(line.rows)}{line.prompts ? <span class="muted"> of {number(line.prompts)}</span> : null}</td>
                  <td><Grades page={page} dataset={line} root={root} /></td>
                  <td class="n">{number(line.tokens)}</td><td class="n">{number(line.supervised)}</td><td class="n">{usd(line.cost_usd)}</td>
                  <td class="n">{line.billed ? <a href={link("rows", { dataset: line.dataset, root, sort: "-residual_completion" })}>{percent((line.equal ?? 0) / line.billed)}</a> : <span class="muted">no bill</span>}</td>
                  <td class="n">{line.kept ? percent((line.kept_exact ?? 0) / line.kept, 2) : "–"}</td>
                  <td class="n">{line.failing ? <a href={link("rows", { dataset: line.dataset, failing: "yes", root })}>{number(line.failing)}</a> : "0"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </Section>
      <Section title="Checks that did not pass" note={page.checks.length ? undefined : "none"} open={page.checks.length > 0}>
        {page.checks.length ? <Scroll label="checks">
          <table>
            <thead><tr><th scope="col">check</th><th scope="col">of</th><th scope="col">means</th><th scope="col">what was found</th><th scope="col">rows</th></tr></thead>
            <tbody>{page.checks.map((line) => (
              <tr>
                <th scope="row">{line.check}</th><td>{line.stage}/{line.dataset} <span class="muted">{line.shards.join(" ")}</span></td>
                <td><span class={line.stops ? "stop" : "warn"}>{line.stops ? "stops" : "warns"}</span></td><td>{line.message}</td>
                <td>{line.keys.map(([key, sample]) => <><a href={rowLink(key, {}, root)}><code>{sample.slice(0, 8)}</code></a> </>)}</td>
              </tr>
            ))}</tbody>
          </table>
        </Scroll> : <p class="muted">Every check that was asked has passed.</p>}
      </Section>
      {page.waivers.length ? <Section title="Waived by people">
        <ul>{page.waivers.map((w) => <li><b>{w.check}</b> of {w.dataset} {w.shard}: {w.why} ({w.who}, until {w.until})</li>)}</ul>
      </Section> : null}
    </>
  );
}
