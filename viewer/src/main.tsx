// The frame around all pages: navigation, which campaign, theme, keys, what is new.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { go, link, useAddress } from "./address";
import { Campaign } from "./campaign";
import { Compare } from "./compare";
import { ask, exported, forget, type State } from "./data";
import { number, useKeys, Waiting } from "./parts";
import { Providers } from "./providers";
import { Row } from "./row";
import { Rows } from "./rows";
import "./style.css";

const PAGES: [string, string, string][] = [["campaign", "Campaign", "1"], ["rows", "Rows", "2"], ["providers", "Providers", "3"], ["compare", "Compare", "4"]];
const LOOK_AGAIN_MS = 3000;
const KEYS: [string, string][] = [
  ["1 2 3 4", "campaign, rows, providers, compare"], ["t", "light, dark, as the system"], ["?", "this help"], ["/", "rows: find in texts"], ["j k", "rows: down, up; a row: next, previous of the list"],
  ["Enter", "rows: open"], ["n p", "rows: next, previous page; a row: next, previous failing row"], ["f", "rows: failing rows only"], ["x", "rows: clear all filters"], ["[ ]", "a row: earlier, later tokens"],
  ["← →", "a row: from token to token, in the box of tokens"], ["u", "a row: back to the list"],
];
const THEMES = ["system", "light", "dark"];

function useTheme(): [string, () => void] {
  const [theme, set] = useState(() => { try { return localStorage.getItem("eagle3-theme") ?? "system"; } catch { return "system"; } });
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("eagle3-theme", theme); } catch { /* a page from the disk may have no storage */ }
    dispatchEvent(new Event("eagle3-theme"));
  }, [theme]);
  return [theme, () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

function useLiveState(root: unknown): { state?: State; error?: string } {
  const [found, set] = useState<{ state?: State; error?: string }>({});
  useEffect(() => {
    let wanted = true;
    let timer = 0;
    const look = () => ask<State>("state", { root: root as string }).then(
      (state) => {
        if (!wanted) return;
        set((old) => { if (old.state && old.state.version !== state.version) forget(); return { state }; });
        if (!exported) timer = window.setTimeout(look, LOOK_AGAIN_MS);
      },
      (error: Error) => {
        if (!wanted) return;
        set((old) => ({ ...old, error: error.message }));
        if (!exported) timer = window.setTimeout(look, LOOK_AGAIN_MS);
      },
    );
    look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [root]);
  return found;
}

function App() {
  const { page, path, params } = useAddress();
  const root = params.root;
  const { state, error } = useLiveState(root);
  const [theme, turn] = useTheme();
  const help = useRef<HTMLDialogElement>(null);
  const main = useRef<HTMLElement>(null);
  useKeys({
    ...Object.fromEntries(PAGES.map(([name, , key]) => [key, () => go(link(name, { root }))])), t: turn,
    "?": () => (help.current?.open ? help.current.close() : help.current?.showModal()),
  });
  const title = PAGES.find(([name]) => name === page)?.[1] ?? "Row";
  useEffect(() => { document.title = `${title}${state ? ` – ${state.root}` : ""} – eagle3 view`; }, [title, state?.root]);
  const current = page === "row" ? "rows" : page;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>to the content</a>
      <header>
        <span class="brand">eagle3 view</span>
        <nav aria-label="pages">{PAGES.map(([name, words]) => <a href={link(name, { root })} aria-current={current === name ? "page" : undefined}>{words}</a>)}</nav>
        <span class="right">
          {state && state.roots.length > 1 ? <label>campaign <select value={String(root ?? state.roots[0])} onChange={(event) => go(link(page === "row" ? "rows" : page, event.currentTarget.value === state.roots[0] ? {} : { root: event.currentTarget.value }))}>{state.roots.map((name) => <option value={name}>{name}</option>)}</select></label> : null}
          {state?.export ? <span class="muted">export of {state.export} UTC, {number(state.pages)} rows in full</span> : null}
          <button type="button" onClick={turn} title="key t">theme: {theme}</button>
          <button type="button" onClick={() => help.current?.showModal()} title="key ?">keys</button>
        </span>
      </header>
      <dialog ref={help} aria-label="keys"><h2>Keys</h2><dl class="facts">{KEYS.map(([key, words]) => <div><dt><kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl><form method="dialog"><button>close</button></form></dialog>
      <main ref={main} id="main" tabIndex={-1}>
        {error ? <p class="error" role="alert">{error}</p> : null}
        {!state ? (error ? null : <Waiting />)
          : page === "rows" ? <Rows params={params} version={state.version} state={state} />
          : page === "row" ? <Row path={path} params={params} key={path.join("/")} />
          : page === "providers" ? <Providers params={params} path={path} version={state.version + Number(state.reading.ready)} />
          : page === "compare" ? <Compare params={params} state={state} version={state.version + Number(state.reading.ready)} />
          : <Campaign params={params} version={state.version} />}
      </main>
    </>
  );
}

const place = document.getElementById("app")!;
place.textContent = "";
render(<App />, place);
