"""All rows of a campaign as one DuckDB table, kept up to date with the files.

Belongs here: loading token files and the model's verdicts into memory, and noticing that files changed. Does not belong here: questions
(`search.py`), texts (`texts.py`), journals (`calls.py`).

A file is loaded when its manifest is there, once for each version of it. A damaged file is named in `problems` and left out: the other
rows can be looked at.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import StoreError
from eagle3_assets.grades import OUT
from eagle3_assets.review.rows.admission import drop_reason_sql
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE, verdicts_manifest
from eagle3_assets.store import read_manifest
from eagle3_assets.view.roots import Root

FRESH_S = 1.0  # how long the files are taken to be as they were

# One file's rows. The residual is counted as the review counts it (`review/rows/columns.py`): ids + the provider's convention - billed.
_FACTS = """
SELECT ? AS file, file_row_number AS place, sample_id, turn, attempt, dataset, shard, source,
  coalesce(provider, '(' || source || ')') AS provider, coalesce(model, '') AS model, grade, p_exact, p_basis,
  coalesce(reasons[1], '') AS reason, len(reasons) AS reasons, coalesce(finish_reason, '') AS finish_reason,
  CASE WHEN coalesce(TRY_CAST(e ->> '$.tools' AS BOOLEAN), finish_reason = 'tool_calls', false) THEN 'yes' ELSE 'no' END AS tools,
  len(input_ids) AS length, prompt_len, len(input_ids) - prompt_len AS generated,
  coalesce(list_sum(list_transform(loss_spans, lambda s: s['end'] - s['start'])), 0)::BIGINT AS supervised,
  CASE WHEN billed_completion IS NOT NULL AND len(input_ids) > prompt_len THEN len(input_ids) - prompt_len
    + coalesce(TRY_CAST(e ->> '$.convention.completion' AS BIGINT), 0) - billed_completion END AS residual_completion,
  CASE WHEN billed_prompt IS NOT NULL AND prompt_len > 0 THEN prompt_len
    + coalesce(TRY_CAST(e ->> '$.convention.prompt' AS BIGINT), 0) - billed_prompt END AS residual_prompt,
  len(survivors) AS survivors, cost_usd, billed_prompt, billed_completion, billed_reasoning,
  coalesce(e ->> '$.reading', '') AS reading, coalesce(e ->> '$.spacing', '') AS spacing, coalesce(e ->> '$.basis', '') AS basis,
  coalesce(e ->> '$.profile', '') AS profile, coalesce(json_array_length(json_keys(e -> '$.edits')), 0) AS edits
FROM (SELECT *, TRY_CAST(evidence AS JSON) AS e FROM read_parquet(?, file_row_number = true))
"""
_VERDICTS = "SELECT ? AS file, sample_id, turn, final_grade, judged, winner, posterior, mean_logprob FROM read_parquet(?)"
_EMPTY = """
CREATE TABLE facts (file VARCHAR, place BIGINT, sample_id VARCHAR, turn INT, attempt INT, dataset VARCHAR, shard VARCHAR, source VARCHAR,
  provider VARCHAR, model VARCHAR, grade VARCHAR, p_exact DOUBLE, p_basis VARCHAR, reason VARCHAR, reasons BIGINT, finish_reason VARCHAR,
  tools VARCHAR, length BIGINT, prompt_len INT, generated BIGINT, supervised BIGINT, residual_completion BIGINT, residual_prompt BIGINT,
  survivors BIGINT, cost_usd DOUBLE, billed_prompt INT, billed_completion INT, billed_reasoning INT, reading VARCHAR, spacing VARCHAR,
  basis VARCHAR, profile VARCHAR, edits BIGINT);
CREATE TABLE verdicts (file VARCHAR, sample_id VARCHAR, turn INT, final_grade VARCHAR, judged BOOLEAN, winner INT, posterior DOUBLE,
  mean_logprob DOUBLE);
CREATE TABLE texts (file VARCHAR, place BIGINT, prompt VARCHAR, answer VARCHAR);
"""
Stamp = tuple[int, int]  # mtime_ns, bytes


class Catalogue:
    """The tables of one root: `rows` (names in `columns.py`, plus key, file, place, n), `texts`. Threads may ask at any time."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.problems: dict[str, str] = {}  # by file; those of a file go when it is read anew
        self._uncommitted: dict[str, str] = {}  # what the last look at the manifests found
        self.version = 0
        self._db = duckdb.connect(":memory:")
        self._db.execute(_EMPTY)
        self._seen: dict[str, Stamp] = {}
        self._changing = threading.Lock()
        self._asked = 0.0
        self._build_rows()

    def told(self) -> list[str]:
        """What is wrong with the files, in words; empty where all is well."""
        return [*self._uncommitted.values(), *self.problems.values()]

    @contextlib.contextmanager
    def asking(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for several questions; its temporary tables are its own."""
        with self._db.cursor() as cursor:
            yield cursor

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query, on a cursor of its own (a connection serves one thread at a time)."""
        with self._db.cursor() as cursor:
            found: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
        return found

    def records(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The same with names."""
        with self._db.cursor() as cursor:
            result = cursor.execute(sql, parameters)
            names = [column[0] for column in result.description]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def add(self, table: str, arrow: Any) -> None:
        """Append an Arrow table to one of ours."""
        with self._db.cursor() as cursor:
            cursor.register("incoming", arrow)
            cursor.execute(f"INSERT INTO {table} SELECT * FROM incoming")

    # -------------------------------------------------------------------------------------------- files
    def refresh(self) -> bool:
        """Load what changed since the last time; whether anything did. At most once in FRESH_S the files are looked at."""
        with self._changing:
            if time.monotonic() - self._asked < FRESH_S:
                return False
            now = {str(path): (kind, stamp) for kind, path, stamp in self._files()}
            gone = [path for path in self._seen if path not in now]
            changed = [path for path, (_, stamp) in now.items() if self._seen.get(path) != stamp]
            for path in (*gone, *changed):
                self._forget(path)
            for path in changed:
                self._load(path, *now[path])
            if gone or changed:
                self._build_rows()
            self._asked = time.monotonic()
            return bool(gone or changed)

    def _files(self) -> list[tuple[str, Path, Stamp]]:
        store = self.root.store
        self._uncommitted = {}
        paths = [("facts", path) for path in sorted(store.root.glob("tokens/*/*.parquet")) if self._is_committed(path)]
        for shard in corpus_shards(store):
            try:
                manifest = verdicts_manifest(store, shard)
            except StoreError as error:
                self._uncommitted[f"verdicts {shard}"] = str(error)
                continue
            if manifest is not None:
                paths.append(("verdicts", store.states(shard) / VERDICTS_FILE))
        out = []
        for kind, path in paths:
            try:
                facts = path.stat()
            except OSError:
                continue
            out.append((kind, path, (facts.st_mtime_ns, facts.st_size)))
        return out

    def _is_committed(self, path: Path) -> bool:
        """Readers trust manifests only; a damaged one is told."""
        try:
            found = read_manifest(path) is not None
        except StoreError as error:
            self._uncommitted[str(path)] = str(error)
            return False
        return found

    def _forget(self, path: str) -> None:
        with self._db.cursor() as cursor:
            for table in ("facts", "verdicts", "texts"):
                cursor.execute(f"DELETE FROM {table} WHERE file = ?", [path])
        self._seen.pop(path, None)
        self.problems.pop(path, None)

    def _load(self, path: str, kind: str, stamp: Stamp) -> None:
        self._seen[path] = stamp
        try:
            with self._db.cursor() as cursor:
                cursor.execute(f"INSERT INTO {kind} {_FACTS if kind == 'facts' else _VERDICTS}", [path, _literal(path)])
        except duckdb.Error as error:
            self.problems[path] = f"{path}: cannot be read ({str(error).splitlines()[0]}); materialize its asset again"

    def _build_rows(self) -> None:
        campaign = self.root.campaign
        dropped = drop_reason_sql(campaign) if campaign else "NULL"
        doubted = "false" if campaign else "reasons > 0"  # without a policy, what the row says of itself
        out = ", ".join(f"'{grade}'" for grade in OUT)
        with self._db.cursor() as cursor:
            cursor.execute(f"""
CREATE OR REPLACE TABLE rows AS
WITH joined AS (
  SELECT f.*, coalesce(v.final_grade, '') AS model_grade, v.winner, v.mean_logprob,
    coalesce(f.dataset || '/' || f.sample_id || '/' || f.turn, '') AS key,
    CASE WHEN regexp_matches(reason, '^[a-z_]+(:|$)') THEN split_part(reason, ':', 1) WHEN reason <> '' THEN 'other' ELSE '' END AS "check"
  FROM facts f LEFT JOIN (SELECT * FROM verdicts WHERE judged) v USING (sample_id, turn)
), judged AS (SELECT *, coalesce({dropped}, '') AS dropped FROM joined)
SELECT row_number() OVER (ORDER BY dataset, shard, sample_id, turn, file, place) AS n, *,
  CASE WHEN grade IN ({out}) OR dropped <> '' OR model_grade = 'Q' OR {doubted} THEN 'yes' ELSE 'no' END AS failing
FROM judged ORDER BY n""")
        self.version += 1


def _literal(path: str) -> str:
    """`read_parquet` takes patterns: a path with such characters means itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def open_catalogue(root: Root) -> Catalogue:
    """The catalogue of `root`, loaded. Raises StoreError where the folder does not exist."""
    if not root.store.root.is_dir():
        raise StoreError(
            f"{root.store.root}: does not exist, so there is nothing to look at; `eagle3 run` makes it, EAGLE3_DATA says where it is"
        )
    found = Catalogue(root)
    found.refresh()
    return found
