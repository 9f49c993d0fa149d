// One row: tokens as chips, the wire's text beside the ids', prompt beside request, survivors, bill, surprise, raw bytes.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { go, link, read, rowLink } from "./address";
import { ask, askOnce, exported, words, type Params, type Span, type Value } from "./data";
import { bytes, Chart, Facts, Grade, gradeWords, number, percent, Scroll, Section, Spans, useAnswer, useKeys, usd, Waiting, when } from "./parts";

type Chip = [id: number, text: string];
interface Page {
  key: string; sample_id: string; facts: [string, string][]; grade: string; p_exact: number; reasons: string[]; length: number; prompt_len: number; block: number;
  bill: { part: string; rebuilt: number | null; convention: number; billed: number | null; d: number | null }[];
  wire: { reading: string; edges: { edge: string; mechanism: string; wire: string; model: string; edited: string }[]; fields: { name: string; spans: Span[]; edited: boolean }[]; fault: string | null; problems: string[] };
  prompt: { forms: string[]; rendered: Span[]; messages: { role: string; spans: Span[]; rest: Span[] }[]; tools: Span[]; settings: Span[] };
  survivors: { number: number; length: number; log_prob: number | null; chosen_log_prob: number | null; won: boolean; differences: { at: number; before: Chip[]; chosen: Chip[]; survivor: Chip[]; behind: Chip[]; more: number }[] }[];
  posterior: number | null; surprise: { positions: number[]; logprob: number[]; entropy: (number | null)[]; least: [number, number, string, number][]; ids: number; other_ids: boolean } | null;
  verdict: [string, string][]; attempts: Record<string, Value>[]; evidence: [string, string][]; tokenizer: string;
  raw: { request: number; response: number; status: number; headers: [string, string][]; request_id: string } | null;
}
type Token = [id: number, text: string, kind: number, supervised: number, logprob: number | null];
interface Around { previous: string | null; next: string | null }

const MECHANISMS: Record<string, string> = {
  keep: "nothing is done", join: "the server joins one space to the marker", strip: "the server takes whitespace away", trim: "the server takes line breaks away",
};
const EDGES: Record<string, string> = {
  reasoning_lead: "front of the reasoning", reasoning_trail: "back of the reasoning", content_lead: "front of the content", content_trail: "back of the content",
};

export function Row({ path, params }: { path: string[]; params: Params }) {
  const key = path.join("/");
  const root = params.root as Value;
  const list = useMemo(() => read(`#/rows?${params.list ?? ""}`).params, [params.list]);
  const { value: page, error } = useAnswer(() => askOnce<Page>("row", { key, root }), [key, root]);
  const { value: around } = useAnswer(() => ask<{ list: Around; failing: Around }>("neighbours", { ...list, key, root }), [key, root, params.list]);
  const [start, jump] = useState(0);
  const [at, mark] = useState<number | null>(null);
  useEffect(() => { jump(0); mark(null); scrollTo(0, 0); }, [key]);
  const open = (next: string | null | undefined, query: Params = list) => { if (next) go(rowLink(next, query, root)); };
  const back = link("rows", { ...list, root });
  const show = (position: number) => {
    if (!page) return;
    jump(Math.floor(position / page.block) * page.block);
    mark(position);
    document.getElementById("tokens")?.scrollIntoView({ block: "nearest" });
  };
  useKeys({
    j: () => open(around?.list.next), k: () => open(around?.list.previous), n: () => open(around?.failing.next), p: () => open(around?.failing.previous),
    u: () => go(back), Escape: () => go(back),
    "]": () => page && start + page.block < page.length && jump(start + page.block), "[": () => start > 0 && page && jump(Math.max(0, start - page.block)),
  });
  const step = (words: string, to: string | null | undefined, hint: string) => (
    <button type="button" disabled={!to} title={`key ${hint}`} onClick={() => open(to)}>{words} <kbd>{hint}</kbd></button>
  );
  return (
    <>
      <nav class="steps" aria-label="other rows">
        <a href={back}>all rows <kbd>u</kbd></a>
        <span>{step("previous", around?.list.previous, "k")}{step("next", around?.list.next, "j")}</span>
        <span>{step("previous failing", around?.failing.previous, "p")}{step("next failing", around?.failing.next, "n")}</span>
      </nav>
      {page ? <Whole page={page} root={root} start={start} jump={jump} at={at} mark={mark} show={show} /> : <><h1>Row</h1><Waiting error={error} /></>}
    </>
  );
}

function Whole({ page, root, start, jump, at, mark, show }: { page: Page; root: Value; start: number; jump: (n: number) => void; at: number | null; mark: (n: number | null) => void; show: (n: number) => void }) {
  const edited = page.wire.fields.filter((field) => field.edited).length;
  return (
    <>
      <h1><Grade grade={page.grade} /> <code>{page.sample_id}</code> <small>{gradeWords(page.grade)}; p exact {page.p_exact.toFixed(4)}</small></h1>
      {page.reasons.length ? <ul class="reasons">{page.reasons.map((reason) => <li>{reason}</li>)}</ul> : null}
      <div class="two">
        <Section title="Facts"><Facts facts={[...page.facts, ["tokenizer", page.tokenizer]]} /></Section>
        <Section title="Bill against count"><Bill page={page} /></Section>
      </div>
      <Tokens page={page} root={root} start={start} jump={jump} at={at} mark={mark} />
      <Section title="Wire text beside ids" note={page.wire.fault ? "not taken apart" : edited ? `${edited} of ${page.wire.fields.length} fields were changed` : "as the ids spell it"}>
        <p class="key"><del>taken out: on the wire only</del> <ins>put back: written by the model only</ins></p>
        {page.wire.fault ? <p class="error">{page.wire.fault}</p> : null}
        {page.wire.problems.length ? <ul class="warn">{page.wire.problems.map((problem) => <li>{problem}</li>)}</ul> : null}
        {page.wire.reading ? <p>Read as <code>{page.wire.reading}</code>.</p> : null}
        {page.wire.edges.length ? <ul class="edges">{page.wire.edges.map((edge) => (
          <li><b>{EDGES[edge.edge] ?? edge.edge}</b>: {edge.mechanism ? MECHANISMS[edge.mechanism] ?? edge.mechanism : "read otherwise"}
            {edge.edited === "True" ? <> – the wire has <code>{`"${edge.wire.replace(/ /g, "␣")}"`}</code>, the model wrote <code>{`"${edge.model.replace(/ /g, "␣")}"`}</code></> : <span class="muted"> (nothing to change here)</span>}</li>
        ))}</ul> : null}
        {page.wire.fields.map((field) => <><h3>{field.name} {field.edited ? <span class="badge">changed</span> : null}</h3><Spans spans={field.spans} label={field.name} /></>)}
      </Section>
      <Section title="Prompt as rendered, beside the request" note={`${number(page.prompt_len)} ids`} open={page.prompt_len < 3000}>
        {page.prompt.forms.length ? <p class="muted">Rendered as {page.prompt.forms.slice(0, 2).join(" or ")}{page.prompt.forms.length > 2 ? ` (and ${page.prompt.forms.length - 2} forms that give the same ids)` : ""}.</p> : null}
        <div class="two">
          <div><h3>what the server saw</h3><Spans spans={page.prompt.rendered} label="prompt as rendered" /></div>
          <div><h3>what was asked</h3>
            {page.prompt.messages.map((message) => <div class="message"><b>{message.role}</b><Spans spans={message.spans} label={`message of ${message.role}`} />{message.rest.length ? <Spans spans={message.rest} label={`more of the message of ${message.role}`} /> : null}</div>)}
            {page.prompt.tools.length ? <details><summary>tools</summary><Spans spans={page.prompt.tools} label="tools" /></details> : null}
            {page.prompt.settings.length ? <details><summary>settings</summary><Spans spans={page.prompt.settings} label="settings" /></details> : null}
          </div>
        </div>
      </Section>
      <Section title="Survivors" note={page.survivors.length ? `${page.survivors.length} other id sequences are open` : "none"} open={page.survivors.length > 0}>
        <Survivors page={page} show={show} />
      </Section>
      {page.surprise ? <Surprise page={page} show={show} /> : null}
      {page.verdict.length ? <Section title="The model's verdict" open={false}><Facts facts={page.verdict} /></Section> : null}
      <Section title="Every attempt" note={`${page.attempts.length || "not read yet"}`} open={page.attempts.length > 1}>
        <Scroll label="attempts"><table>
          <thead><tr>{["attempt", "provider", "outcome", "status", "reason", "billed", "USD", "seconds", "finished (UTC)"].map((name) => <th scope="col">{name}</th>)}</tr></thead>
          <tbody>{page.attempts.map((line) => <tr><td>{line.attempt}</td><td>{line.provider}</td><td>{line.outcome}</td><td>{line.status}</td><td>{line.reason}</td><td class="n">{number(line.tokens)}</td><td class="n">{usd(line.cost_usd)}</td><td class="n">{number(line.seconds, 1)}</td><td>{when(line.finished)}</td></tr>)}</tbody>
        </table></Scroll>
      </Section>
      {page.raw ? <Raw page={page} root={root} /> : null}
      <Section title="Evidence" open={false}><dl class="facts wide">{page.evidence.map(([name, value]) => <div><dt>{name}</dt><dd><code>{value}</code></dd></div>)}</dl></Section>
    </>
  );
}

function Bill({ page }: { page: Page }) {
  return (
    <Scroll label="bill against count"><table class="bill">
      <thead><tr><th scope="col">part</th><th scope="col" class="n">rebuilt</th><th scope="col" class="n" title="what this provider's bill counts beside the ids">convention</th><th scope="col" class="n">billed</th><th scope="col" class="n">difference</th></tr></thead>
      <tbody>{page.bill.map((line) => (
        <tr><th scope="row">{line.part}</th><td class="n">{number(line.rebuilt)}</td><td class="n">{line.convention ? (line.convention > 0 ? `+${line.convention}` : line.convention) : "–"}</td>
          <td class="n">{line.billed === null ? "not billed" : number(line.billed)}</td>
          <td class={`n ${line.part === "reasoning" ? "" : line.d ? "stop" : line.d === 0 ? "pass" : ""}`} title={line.part === "reasoning" ? "many servers estimate this figure, or count it by a rule of their own" : undefined}>{line.d === null ? "–" : line.d === 0 ? "0 ✓" : line.d > 0 ? `+${line.d}` : line.d}</td></tr>
      ))}</tbody>
    </table></Scroll>
  );
}

const LEVELS = [0.02, 0.1, 0.5, 1.5, 3.5];
const level = (logprob: number | null): number => (logprob === null ? 0 : LEVELS.filter((bound) => -logprob >= bound).length);
const KINDS = ["prompt", "written by the model", "marker"];

function Tokens({ page, root, start, jump, at, mark }: { page: Page; root: Value; start: number; jump: (n: number) => void; at: number | null; mark: (n: number | null) => void }) {
  const { value: block, error } = useAnswer(() => askOnce<{ start: number; stop: number; tokens: Token[] }>("tokens", { key: page.key, root, start }), [page.key, start]);
  const [heat, colour] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const held = block && at !== null && at >= block.start && at < block.stop ? block.tokens[at - block.start] : undefined;
  const known = block?.tokens.some((token) => token[4] !== null) ?? false;
  useEffect(() => { if (at !== null && block) box.current?.querySelector(`[data-at="${at}"]`)?.scrollIntoView({ block: "nearest" }); }, [at, block]);
  const move = (event: KeyboardEvent) => {
    if (!block || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const now = at ?? block.start - 1;
    const next = event.key === "Home" ? block.start : event.key === "End" ? block.stop - 1 : now + (event.key === "ArrowRight" ? 1 : -1);
    mark(Math.max(block.start, Math.min(block.stop - 1, next)));
  };
  const point = (event: Event) => {
    const found = (event.target as HTMLElement).closest("[data-at]");
    if (found) mark(Number(found.getAttribute("data-at")));
  };
  const first = Math.floor(page.prompt_len / page.block) * page.block;
  return (
    <Section title="Tokens" id="tokens" note={`${number(page.length)} ids: ${number(page.prompt_len)} prompt, ${number(page.length - page.prompt_len)} behind it`}>
      <div class="bar-line">
        <p class="key"><span class="chip k0">prompt</span><span class="chip k2">marker</span><span class="chip k1 even">model</span><span class="chip k1 odd">model</span><span class="chip k1 even loss">in the loss</span></p>
        {known ? <label><input type="checkbox" checked={heat} onChange={() => colour(!heat)} /> colour by surprise</label> : null}
        {page.length > page.block ? <nav class="pager" aria-label="pages of tokens">
          <button type="button" disabled={start <= 0} onClick={() => jump(Math.max(0, start - page.block))}>earlier <kbd>[</kbd></button>
          <span>{number(start)}–{number(Math.min(page.length, start + page.block) - 1)}</span>
          <button type="button" disabled={start + page.block >= page.length} onClick={() => jump(start + page.block)}>later <kbd>]</kbd></button>
          <button type="button" onClick={() => jump(first)}>to the answer</button>
          <button type="button" onClick={() => jump(Math.floor((page.length - 1) / page.block) * page.block)}>to the end</button>
        </nav> : null}
      </div>
      {error ? <Waiting error={error} /> : null}
      <p class="held" role="status">{held && at !== null
        ? <>position <b>{number(at)}</b> · id <b>{held[0]}</b> · <code>{held[1]}</code> · {KINDS[held[2]]}{held[3] ? ", in the loss" : ""}{held[4] !== null ? ` · log-probability ${held[4]} (${percent(Math.exp(held[4]))})` : ""}</>
        : <span class="muted">Point at a token, or use the arrow keys in the box, to see its id.</span>}</p>
      <div class={`tokens ${heat ? "heat" : ""}`} ref={box} tabIndex={0} role="group" aria-label="tokens; arrow keys move" onKeyDown={move} onMouseOver={point} onClick={point}>
        {block?.tokens.map(([id, text, kind, supervised, logprob], k) => {
          const position = block.start + k;
          const name = `chip k${kind} ${kind === 1 ? (position % 2 ? "odd" : "even") : ""} ${supervised ? "loss" : ""} h${level(logprob)} ${position === at ? "at" : ""}`;
          return <><span class={name} data-at={position} title={`${position}: id ${id}${logprob !== null ? `, log-prob ${logprob}` : ""}`}>{text}</span>{text.includes("\\n") || kind === 2 ? <wbr /> : null}{text.includes("\\n") ? <br /> : null}</>;
        })}
      </div>
    </Section>
  );
}

function Chips({ chips }: { chips: Chip[] }) {
  return <>{chips.map(([id, text]) => <span class="chip k0" title={`id ${id}`}>{text}</span>)}</>;
}

function Survivors({ page, show }: { page: Page; show: (n: number) => void }) {
  if (!page.survivors.length) return <p class="muted">The evidence leaves no other id sequence open{page.grade === "Q" ? ", and this one is in quarantine" : ""}.</p>;
  const logs = page.survivors.map((one) => one.log_prob);
  const known = logs.every((one) => one !== null) && page.survivors[0].chosen_log_prob !== null;
  return (
    <>
      <p>The chosen sequence has a posterior of <b>{page.posterior === null ? "–" : page.posterior.toFixed(4)}</b> by bill and profile; the others share the rest.
        {known ? " The model's own log-probabilities stand beside each." : " The model has not been asked yet: it is when hidden states are made."}</p>
      {page.survivors.map((one) => (
        <div class="survivor">
          <h3>survivor {one.number} <small>{number(one.length)} ids ({one.length === page.length ? "as many" : one.length > page.length ? `${one.length - page.length} more` : `${page.length - one.length} fewer`})
            {one.log_prob !== null ? `; log-prob ${one.log_prob.toFixed(2)} against ${one.chosen_log_prob?.toFixed(2)}` : ""}</small> {one.won ? <span class="badge">the model chose this one</span> : null}</h3>
          {one.differences.map((part) => (
            <div class="difference">
              <button type="button" onClick={() => show(part.at)}>at {number(part.at)}</button>
              <span class="around"><Chips chips={part.before} /></span>
              <span class="sides">
                <span class="side"><span class="hidden">chosen: </span>{part.chosen.length ? part.chosen.map(([id, text]) => <del class="chip" title={`id ${id}`}>{text}</del>) : <i>nothing</i>}</span>
                <span class="side"><span class="hidden">survivor: </span>{part.survivor.length ? part.survivor.map(([id, text]) => <ins class="chip" title={`id ${id}`}>{text}</ins>) : <i>nothing</i>}</span>
              </span>
              <span class="around"><Chips chips={part.behind} /></span>
              {part.more ? <span class="muted">and {number(part.more)} more ids</span> : null}
            </div>
          ))}
        </div>
      ))}
    </>
  );
}

function Surprise({ page, show }: { page: Page; show: (n: number) => void }) {
  const told = page.surprise!;
  const series = useMemo(() => [
    { label: "log-probability", values: told.logprob, colour: "--accent", bars: told.positions.length < 400 },
    { label: "entropy", values: told.entropy, colour: "--warm" },
  ], [told]);
  return (
    <Section title="Where the model is surprised" note={`${number(told.ids)} generated ids, in nats`}>
      {told.other_ids ? <p class="warn">The model chose a survivor: these figures are of its ids, positions may differ from the chips above.</p> : null}
      <Chart x={told.positions} series={series} onPick={(k) => show(told.positions[k])}
        label={`Log-probability of each generated id under the target model; the least likely is ${told.least[0]?.[3]} at position ${told.least[0]?.[0]}`} />
      <Scroll label="least likely ids"><table>
        <thead><tr><th scope="col">least likely</th><th scope="col" class="n">position</th><th scope="col" class="n">id</th><th scope="col" class="n">log-prob</th><th scope="col" class="n">probability</th></tr></thead>
        <tbody>{told.least.map(([position, id, text, logprob]) => <tr><td><button type="button" class="plain" onClick={() => show(position)}><span class="chip k1">{text}</span></button></td><td class="n">{number(position)}</td><td class="n">{id}</td><td class="n">{logprob}</td><td class="n">{percent(Math.exp(logprob))}</td></tr>)}</tbody>
      </table></Scroll>
    </Section>
  );
}

function Raw({ page, root }: { page: Page; root: Value }) {
  const raw = page.raw!;
  const [which, choose] = useState("response");
  const [hex, asHex] = useState(false);
  const [places, place] = useState<number[]>([0]);
  const [open, opened] = useState(false);
  const start = places[places.length - 1];
  useEffect(() => { place([0]); }, [which, hex, page.key]);
  const { value, error } = useAnswer(() => (open ? ask<{ start: number; stop: number; total: number; text: string }>("raw", { key: page.key, root, which, start, as: hex ? "hex" : undefined }) : Promise.reject(new Error(""))), [page.key, which, hex, start, open]);
  return (
    <details class="panel" onToggle={(event) => opened(event.currentTarget.open)}>
      <summary><h2>Raw bytes</h2><span class="note">request {bytes(raw.request)} as the journal keeps it, response {bytes(raw.response)} as received, status {raw.status}</span></summary>
      <div class="inside">
        <div class="bar-line">
          <fieldset class="choice"><legend class="hidden">which</legend>
            {["request", "response"].map((name) => <label><input type="radio" name="which" checked={which === name} onChange={() => choose(name)} /> {name}</label>)}
          </fieldset>
          {exported ? null : <label><input type="checkbox" checked={hex} onChange={() => asHex(!hex)} /> hex</label>}
          {exported ? null : <a href={`./raw/${which}?${words({ key: page.key, root })}`} download>save all of it</a>}
          {value && (value.stop < value.total || places.length > 1) ? <nav class="pager" aria-label="pages of bytes">
            <button type="button" disabled={places.length < 2} onClick={() => place(places.slice(0, -1))}>earlier</button>
            <span>{number(value.start)}–{number(value.stop)} of {number(value.total)}</span>
            <button type="button" disabled={value.stop >= value.total} onClick={() => place([...places, value.stop])}>later</button>
          </nav> : null}
        </div>
        {which === "response" && raw.headers.length ? <p class="muted">{raw.headers.map(([name, text]) => `${name}: ${text}`).join(" · ")}</p> : null}
        {error ? <Waiting error={error} /> : null}
        {value ? <pre class="text" tabIndex={0} role="group" aria-label={`raw ${which}`}>{value.text}</pre> : null}
      </div>
    </details>
  );
}
