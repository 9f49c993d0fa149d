// The page's address: everything after # says what is shown, so that every view can be sent, marked and gone back to.
import { useEffect, useState } from "preact/hooks";
import { words, type Params } from "./data";

export interface Address { page: string; path: string[]; params: Params }

export function read(hash: string): Address {
  const [path, query] = [hash.replace(/^#\/?/, "").split("?")[0], hash.includes("?") ? hash.slice(hash.indexOf("?") + 1) : ""];
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const params: Params = {};
  for (const [name, value] of new URLSearchParams(query)) {
    const known = params[name];
    params[name] = known === undefined ? value : [...(Array.isArray(known) ? known : [known]), value];
  }
  return { page: parts[0] || "campaign", path: parts.slice(1), params };
}

export function link(page: string, params: Params = {}, ...path: string[]): string {
  const query = words(params);
  return `#/${[page, ...path].map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

/** The address of one row; `list` is the query of the table that it was opened from. */
export function rowLink(key: string, list: Params = {}, root?: Params[string]): string {
  const query = words(list);
  return link("row", { ...(query ? { list: query } : {}), ...(root ? { root } : {}) }, ...key.split("/"));
}

export function go(address: string): void { location.hash = address.replace(/^#/, ""); }

export function useAddress(): Address {
  const [found, set] = useState(() => read(location.hash));
  useEffect(() => {
    const changed = () => set(read(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return found;
}
