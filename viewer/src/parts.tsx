// What several pages are drawn with: numbers, grades, spans of text, charts, states of loading.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Span, Value } from "./data";

export const number = (value: Value | undefined, digits = 0): string =>
  typeof value === "number" ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
export const percent = (part: Value | undefined, digits = 1): string => (typeof part === "number" ? `${(100 * part).toFixed(digits)} %` : "–");
export const usd = (value: Value | undefined): string => (typeof value === "number" ? `${value.toFixed(value && Math.abs(value) < 10 ? 4 : 2)}` : "–");
export const when = (seconds: Value | undefined): string =>
  typeof seconds === "number" && seconds > 0 ? new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") : "–";
export const bytes = (n: number): string => (n < 1e3 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`);

/** Control characters, direction marks and odd blanks as escapes, like `visible` in eagle3_assets/exact/show.py: seen, never obeyed. */
export const seen = (text: string): string =>
  text.replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (c) => {
    const code = c.codePointAt(0) ?? 0;
    const hex = code.toString(16);
    return c === "\n" ? "\\n" : c === "\t" ? "\\t" : c === "\r" ? "\\r" : code < 256 ? `\\x${hex.padStart(2, "0")}` : code < 65536 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });

const GRADES: Record<string, string> = {
  A0: "ids returned by a server", A1: "proved by log-probabilities", A2: "proved by the stream's boundaries", B1: "one hypothesis fits the bill",
  B2: "chosen by the model's own forward pass", C1: "several hypotheses fit the bill", R: "repaired", I: "imported, without a bill",
  D: "no bill: nothing is verified", Q: "in quarantine",
};
export function Grade({ grade }: { grade: Value | undefined }) {
  const name = String(grade ?? "");
  if (!name) return <span class="muted">–</span>;
  return <span class={`grade g${name[0]}`} title={GRADES[name] ?? name}>{name}</span>;
}
export const gradeWords = (grade: string): string => GRADES[grade] ?? "";

/** Whitespace that was taken out or put back must be seen. */
const marked = (text: string): string => text.replace(/ /g, "␣").replace(/\t/g, "⇥").replace(/\n/g, "⏎\n");

const WORDS: Record<string, string> = { gone: "on the wire only", new: "written by the model only" };
export function Spans({ spans, label }: { spans: Span[]; label?: string }) {
  if (!spans.length) return <p class="muted">empty</p>;
  return (
    <div class="text" role="group" tabIndex={0} aria-label={label ?? "text"}>
      {spans.map(([kind, text]) =>
        kind === "gone" ? <del title={WORDS.gone}>{marked(text)}</del>
        : kind === "new" ? <ins title={WORDS.new}>{marked(text)}</ins>
        : kind === "marker" ? <span class="marker">{text}</span>
        : kind === "left_out" ? <span class="left-out">… {text} …</span>
        : text)}
    </div>
  );
}

export function Section({ title, note, children, open = true, id }: { title: string; note?: ComponentChildren; children: ComponentChildren; open?: boolean; id?: string }) {
  return (
    <details class="panel" open={open} id={id}>
      <summary><h2>{title}</h2>{note ? <span class="note">{note}</span> : null}</summary>
      <div class="inside">{children}</div>
    </details>
  );
}

/** What may be wider than the screen scrolls by itself, also by keyboard. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return <div class="scroll" role="group" tabIndex={0} aria-label={label}>{children}</div>;
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return <dl class="facts">{facts.map(([name, value]) => <div><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

/** What a promise gave: the value, an error in words, or neither yet. `again` changes when it is to be asked again. */
export function useAnswer<T>(question: () => Promise<T>, again: unknown[]): { value?: T; error?: string; stale: boolean } {
  const [state, set] = useState<{ value?: T; error?: string; stale: boolean }>({ stale: true });
  useEffect(() => {
    let wanted = true;
    set((old) => ({ ...old, stale: true }));
    question().then(
      (value) => wanted && set({ value, stale: false }),
      (error: Error) => wanted && set({ error: error.message, stale: false }),
    );
    return () => { wanted = false; };
  }, again);
  return state;
}

export function Waiting({ error }: { error?: string }) {
  return error ? <p class="error" role="alert">{error}</p> : <p class="wait">Loading …</p>;
}

/** A share as a bar with its number: never colour alone. */
export function Bar({ share, title }: { share: number; title?: string }) {
  return <span class="bar" title={title}><span class="fill" style={{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }} /></span>;
}

const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export interface Series { label: string; values: (number | null)[]; colour: string; bars?: boolean; scale?: string }
/** Lines over time or position. `label` says in words what is seen; `onPick` gets the index under the pointer. */
export function Chart({ x, series, label, time = false, height = 150, onPick }:
  { x: number[]; series: Series[]; label: string; time?: boolean; height?: number; onPick?: (index: number) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const changed = () => setTheme((n) => n + 1);
    addEventListener("eagle3-theme", changed);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", changed);
    return () => { removeEventListener("eagle3-theme", changed); dark.removeEventListener("change", changed); };
  }, []);
  useEffect(() => {
    const here = box.current;
    if (!here || x.length === 0) return;
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "11px system-ui" };
    const plot = new uPlot({
      width: here.clientWidth || 600, height, legend: { live: true }, cursor: { points: { size: 6 } }, scales: { x: { time } },
      series: [{}, ...series.map((one) => ({
        label: one.label, stroke: css(one.colour), width: 1.5, scale: one.scale ?? "y", spanGaps: true, points: { show: x.length < 80, size: 4 },
        ...(one.bars ? { paths: uPlot.paths.bars?.({ size: [0.8, 24] }), fill: css(one.colour), points: { show: false } } : {}),
      }))],
      axes: [axis, ...[...new Set(series.map((one) => one.scale ?? "y"))].map((scale, k) => ({ ...axis, scale, side: k ? 1 : 3, size: 54, grid: k ? { show: false } : axis.grid }))],
    } as uPlot.Options, [x, ...series.map((one) => one.values)] as uPlot.AlignedData, here);
    if (onPick) plot.over.addEventListener("click", () => { if (plot.cursor.idx != null) onPick(plot.cursor.idx); });
    const sized = new ResizeObserver(() => plot.setSize({ width: here.clientWidth, height }));
    sized.observe(here);
    return () => { sized.disconnect(); plot.destroy(); };
  }, [x, series, theme]);
  return <figure class="chart"><div ref={box} role="img" aria-label={label} /></figure>;
}

/** Keys that do something on this page, unless somebody is typing. */
export function useKeys(keys: Record<string, () => void>): void {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
      const run = now.current[event.key];
      if (run) { event.preventDefault(); run(); }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

