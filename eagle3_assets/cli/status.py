"""`eagle3 status`: what is there, what is missing, what was spent; and the table that `eagle3 run` ends with."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle3_assets import stages
from eagle3_assets.campaign import PLAY_SERVERS, SHARDS, Campaign, Dataset, load_campaign
from eagle3_assets.collect.money.account import read_account
from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import Eagle3Error, StoreError, WireError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.plan import usd_text
from eagle3_assets.grades import GRADES
from eagle3_assets.review.verdicts.waivers import read_waivers
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import corpus
from eagle3_assets.store import Store, read_json, read_manifest

if TYPE_CHECKING:
    from eagle3_assets.collect.run.shard_work import ShardResult


def command(as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False) -> None:
    """What is there, what is missing, what was spent.

    \b
    eagle3 status           a table of stages, money and datasets
    eagle3 status --json    the same for machines
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    if not store.root.exists():
        print(
            f"eagle3: {store.root.absolute()} does not exist yet: nothing was made here (EAGLE3_DATA says where to look)",
            file=sys.stderr,
        )
    counted = stage_states(campaign, store)
    summary = gather(campaign, store)
    if as_json:
        print(json.dumps({"campaign": campaign.name, "root": str(store.root), "stages": counted, **summary}, indent=2))
        return
    console = Console()
    table = Table(title=Text(f"Campaign {campaign.name} in {store.root}: artifacts"))
    table.add_column("stage")
    for state in ("current", "outdated", "missing", "damaged"):
        table.add_column(state, justify="right")
    for name, counts in counted.items():
        table.add_row(name, *(str(counts.get(s, 0) or "") for s in ("current", "outdated", "missing", "damaged")))
    console.print(table)
    for path in damaged(campaign, store):
        console.print(
            Text.assemble(("damaged ", "bold red"), f"{path}: it is made again by the next `eagle3 run`"), soft_wrap=True
        )
    print_summary(campaign, store, summary)
    console.print(
        Text.assemble((f"{'next':>8}", "bold"), "  ", next_step(campaign, store, counted)), highlight=False, soft_wrap=True
    )


def damaged(campaign: Campaign, store: Store) -> list[str]:
    """The files that their manifests do not bear out."""
    return [str(a.path) for a in stages.artifacts(campaign, store) if a.state() == "damaged"]


def next_step(campaign: Campaign, store: Store, counted: Mapping[str, Mapping[str, int]]) -> str:
    """What a person does now, with the command. `counted` is `stage_states`."""
    open_stages = {name: {s: n for s, n in c.items() if s != "current"} for name, c in counted.items()}
    open_stages = {name: c for name, c in open_stages.items() if c}
    rented = any(d.backend == "openrouter" for d in campaign.dataset) and campaign.server.kind == "openrouter"
    if not any(c.get("current") for c in counted.values()):
        if campaign.server.kind == "embedded":
            return "`eagle3 run` makes everything (minutes; the stand-in answers, nothing is bought)"
        return "`eagle3 doctor` says what this machine lacks, then `eagle3 run --until plan`"
    if rented and "plan" not in open_stages and "answers" in open_stages:
        try:
            planning.approved_usd(campaign, store)
        except Eagle3Error:
            return "`eagle3 plan` says what the answers will cost; `eagle3 plan --approve USD` lets them spend"
    if open_stages:
        first, states = next(iter(open_stages.items()))
        words = ", ".join(f"{n} {state}" for state, n in states.items())
        more = f" and {len(open_stages) - 1} more stages" if len(open_stages) > 1 else ""
        return f"`eagle3 run` makes what is not current: {first} ({words}){more}"
    return "everything is current: `eagle3 view` shows every row; edit the campaign and `eagle3 run` makes what changed"


def print_where(campaign: Campaign, store: Store) -> None:
    """Where one is, in four lines: what `eagle3` alone says."""
    counted = stage_states(campaign, store)
    made = sum(c.get("current", 0) for c in counted.values())
    lines = [
        ("campaign", f"{campaign.name} ({campaign.path})"),
        ("data", f"{store.root.absolute()}: {made} of {sum(sum(c.values()) for c in counted.values())} artifacts are current"),
        ("next", next_step(campaign, store, counted)),
        (
            "help",
            "`eagle3 --help` lists the commands, `eagle3 status` says more, `eagle3 init FOLDER` begins a campaign of your own",
        ),
    ]
    console = Console()
    for name, text in lines:
        console.print(Text.assemble((f"{name:>8}", "bold"), "  ", text), highlight=False, soft_wrap=True)


def stage_states(campaign: Campaign, store: Store) -> dict[str, dict[str, int]]:
    """Stage -> how many artifacts are current, outdated, missing, damaged."""
    counts: dict[str, Counter[str]] = {}
    for artifact in stages.artifacts(campaign, store):
        counts.setdefault(artifact.stage.name, Counter())[artifact.state()] += 1
    for stage in stages.STAGES:  # parts of a corpus that is not merged yet: how many there will be is not known
        if stage.wanted(campaign) and stage.name not in counts:
            counts[stage.name] = Counter(missing=1)
    return {stage: dict(c) for stage, c in counts.items()}


def gather(campaign: Campaign, store: Store) -> dict[str, Any]:
    """Figures per dataset from committed manifests, money from the ledger, exactness from the stand-in where it is embedded."""
    score = _score(campaign, store)
    datasets = [_dataset(campaign, store, d.name, score) for d in campaign.dataset]
    return {
        "datasets": datasets,
        "money": money(store),
        "missing": missing(campaign, store),
        "corpus": _numbers(store, "corpus"),
        "corpus_outdated": corpus_outdated(campaign, store),
        "states": _states(store),
        "score": score,
        "waived": [asdict(w) for w in read_waivers(store)],
    }


def _dataset(campaign: Campaign, store: Store, name: str, score: dict[str, Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"dataset": name, "backend": campaign.dataset_named(name).backend, "prompts": None, "rows": 0, "tokens": 0,
                           "response_tokens": 0, "cost_usd": 0.0, "grades": {}, "complete_shards": 0, "failed": 0}  # fmt: skip
    prompts = _committed(store.prompts(name))
    if prompts:
        row["prompts"] = prompts["selected"]
    grades: Counter[str] = Counter()
    for s in SHARDS:
        answers = _committed(store.answers(name, s))
        if answers:
            row["complete_shards"] += 1
            row["failed"] += answers["failed"]
            row["cost_usd"] += answers["cost_usd"]
        tokens = _committed(store.tokens(name, s))
        if tokens:
            for key in ("rows", "tokens", "response_tokens"):
                row[key] += tokens[key]
            grades.update(tokens["grades"])
    row["grades"] = dict(sorted(grades.items()))
    if score:
        row["exact"] = score["datasets"].get(name)
    return row


def _committed(artifact: Any) -> dict[str, Any] | None:
    try:
        manifest = read_manifest(artifact)
    except StoreError:
        return None
    return dict(manifest.numbers) if manifest else None


def _numbers(store: Store, what: str) -> dict[str, Any]:
    return _committed(getattr(store, what)) or {}


def _states(store: Store) -> dict[str, Any]:
    found = [_committed(store.states(s)) for s in corpus_shards(store)]
    made = [n for n in found if n]
    return {
        "partitions": len(found),
        "made": len(made),
        "bytes": sum(n["bytes"] for n in made),
        "tokens": sum(n["tokens"] for n in made),
    }


def money(store: Store) -> dict[str, float | None]:
    """USD so far, pilot included; zeros before the first request. `unknown_usd` is the part of `ambiguous_usd` that nobody asks for
    any more; `foreign_usd` and `lag_usd` are what the server's figures said beside ours, null when they were never asked for.
    """
    account = read_account(store.ledger)
    total = account.totals.total
    return {
        "spent_usd": total.spent_usd,
        "reserved_usd": total.reserved_usd,
        "ambiguous_usd": total.ambiguous_usd,
        "unknown_usd": account.unknown_usd,
        "foreign_usd": account.foreign_usd,
        "account_foreign_usd": account.account_foreign_usd,
        "lag_usd": account.lag_usd,
    }


def missing(campaign: Campaign, store: Store) -> list[dict[str, Any]]:
    """What `answers` still has to buy: turns and about how many USD, for each dataset through OpenRouter. The price of an answer is
    the dataset's own so far, else the plan's; null when neither is known.
    """
    plan, out = planning.read_plan(store), []
    planned = {row["dataset"]: row["usd_expected"] / row["rows"] for row in plan["datasets"] if row["rows"]} if plan else {}
    scopes = read_account(store.ledger).totals.scopes
    for dataset in campaign.dataset:
        prompts = store.prompts(dataset.name)
        if dataset.backend != "openrouter" or store.closed(dataset.name).exists() or _committed(prompts) is None:
            continue
        try:
            results = [count_shard(campaign, store, dataset, shard) for shard in SHARDS]
        except Eagle3Error as error:  # a damaged file: the other figures can be told
            print(f"eagle3: {error}", file=sys.stderr)
            continue
        lacking, finished = sum(r.missing for r in results), sum(r.finished for r in results)
        spent = scopes[dataset.name].spent_usd if dataset.name in scopes else 0.0
        each = spent / finished if finished and spent else planned.get(dataset.name)
        if lacking:
            usd = None if each is None else round(each * lacking, 6)
            out.append({"dataset": dataset.name, "missing": lacking, "finished": finished, "usd": usd, "usd_each": each})
    return out


def count_shard(campaign: Campaign, store: Store, dataset: Dataset, shard: str) -> ShardResult:
    """How far a shard is, from its manifest when it is complete, else from its journal."""
    from eagle3_assets.collect.run.shard_work import ShardJob, ShardResult, ShardWork
    from eagle3_assets.prompts.file import read_shard
    from eagle3_assets.wire.journal import read

    prompts = tuple(read_shard(store.prompts(dataset.name), shard))
    committed = _committed(store.answers(dataset.name, shard))
    if committed and committed["selected"] >= sum(not p.reserve for p in prompts):
        counts = {
            name: committed[name] for name in ("selected", "finished", "failed", "ambiguous", "cost_usd", "completion_tokens")
        }
        return ShardResult(dataset=dataset.name, shard=shard, missing=0, complete=True, reasons={}, **counts)
    folder = store.answers(dataset.name, shard)
    work = ShardWork(ShardJob(dataset, shard, prompts, folder), campaign.collect.attempts)
    for answer in read(folder):
        work.note(answer)
    work.start()
    return work.result()


def missing_words(campaign: Campaign, store: Store, lacking: list[dict[str, Any]], usd: dict[str, float | None]) -> str:
    """One line for people: what is missing, about what it costs, and what is left of the approval."""
    unknown = [d.name for d in campaign.dataset if d.backend == "openrouter" and _committed(store.prompts(d.name)) is None]
    if unknown and not lacking:
        return f"every answer of {', '.join(unknown)}: its prompts are not made yet, so nobody was asked"
    if not lacking:
        return "nothing: every prompt that OpenRouter answers is answered, counted as failed, or its dataset is closed"
    parts = [
        f"{d['missing']:,} of {d['dataset']}" + (f" (about {d['usd']:,.4f} USD)" if d["usd"] is not None else "") for d in lacking
    ]
    known = [d["usd"] for d in lacking if d["usd"] is not None]
    text = "prompts without an answer: " + ", ".join(parts)
    if len(parts) > 1 and known:
        text += f", together about {sum(known):,.4f} USD"
    used = sum(usd[name] or 0.0 for name in ("spent_usd", "reserved_usd", "ambiguous_usd"))
    try:
        approved = planning.approved_usd(campaign, store)
    except Eagle3Error:
        return f"{text}; nothing is approved: `eagle3 plan --approve USD`"
    text += f"; {max(0.0, approved - used):,.4f} USD are left of {usd_text(approved)} approved"
    if known and used + sum(known) > approved:
        text += f": to buy them, approve about {usd_text(math.ceil(100 * 1.05 * (used + sum(known))) / 100)} with `eagle3 plan --approve`"
        text += ", or `eagle3 close DATASET`"
    return text


def _score(campaign: Campaign, store: Store) -> dict[str, Any] | None:
    if campaign.server.kind != "embedded" or not store.standin.exists():
        return None
    from eagle3_assets.cli.standin import compare

    whole = [store.tokens(d.name, s) for d in campaign.dataset for s in SHARDS if _committed(store.tokens(d.name, s)) is not None]
    try:
        return compare(store.standin, whole) if whole else None
    except (StoreError, WireError) as error:
        print(f"eagle3: {error}", file=sys.stderr)  # the column is left out; everything else can be told
        return None


def print_summary(campaign: Campaign, store: Store, summary: dict[str, Any]) -> None:
    console = Console()
    corpus = summary["corpus"]
    table = Table(title=f"Datasets of campaign {campaign.name}")
    table.add_column("dataset", no_wrap=True)
    for name in ("samples", "tokens", "generated", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("grades", overflow="fold")
    if corpus:
        table.add_column("in corpus", justify="right")
    if summary["score"] is not None:
        table.add_column("exact", justify="right", no_wrap=True)
    for d in summary["datasets"]:
        cells = [
            d["dataset"],
            f"{d['rows']:,}" + (f"/{d['prompts']:,}" if d["prompts"] is not None else ""),
            f"{d['tokens']:,}",
            f"{d['response_tokens']:,}",
            f"{d['cost_usd']:.4f}",
            " ".join(f"{g}:{n}" for g, n in d["grades"].items()),
        ]
        if corpus:
            cells.append(f"{corpus['datasets'].get(d['dataset'], {}).get('kept', 0):,}")
        if summary["score"] is not None:
            cells.append(_exact_cell(d.get("exact")))
        table.add_row(*cells)
    console.print(table)
    usd, states = summary["money"], summary["states"]
    seen = {grade for d in summary["datasets"] for grade in d["grades"]}
    play = "stand-in money" if (store.answered_by() or campaign.server_address) in PLAY_SERVERS else "USD"
    lines = [
        ("grades", " · ".join(f"{name} {GRADES[name].meaning}" for name in GRADES if name in seen) or "no row yet"),
        ("money", f"{usd['spent_usd']:.4f} {play} spent (pilot included), {usd['reserved_usd']:.4f} reserved for requests in flight, "
                  f"{usd['ambiguous_usd']:.4f} held for lost answers{_unknown_words(usd)}, of {usd_text(campaign.budget.campaign_usd)}"
                  f"{_foreign_words(usd)}"),
        ("missing", missing_words(campaign, store, summary["missing"], usd)),
        ("corpus", _corpus_words(corpus, summary["corpus_outdated"])),
        ("states", f"{states['bytes']:,} bytes over {states['tokens']:,} tokens, {states['made']} of {states['partitions']} partitions"),
        *(("waived", f"{w['stage']}/{w['dataset']} {w['shard']} {w['check']}: by {w['who']} until {w['until']}: {w['why']}")
          for w in summary["waived"]),
        *((("remote", _tier_words(campaign, store)),) if campaign.store.remote else ()),
        ("look", _look_words(store)),
    ]  # fmt: skip
    if summary["score"] is not None:
        lines.insert(1, ("exact", _exact_words(summary["score"])))
    for name, text in lines:
        console.print(Text.assemble((f"{name:>8}", "bold"), "  ", text), highlight=False, soft_wrap=True)


def _tier_words(campaign: Campaign, store: Store) -> str:
    """How much of the campaign the remote store holds, as it is recorded here; nobody is asked."""
    from eagle3_assets.tier.campaign_copy import whereabouts

    rows = whereabouts(store, {a.path: a for a in stages.artifacts(campaign, store)})
    whole, there = sum(r.bytes for r in rows), sum(r.remote for r in rows)
    return f"{there / 1e9:.3f} of {whole / 1e9:.3f} GB lie in {campaign.store.remote} (`eagle3 tier`)"


def _look_words(store: Store) -> str:
    """Where the results are looked at: the viewer first, the page of the reports, one row worth opening."""
    words = ["`eagle3 view` (every row in a browser)", "`eagle3 ui` (Dagster: runs and checks)"]
    if (page := store.reports / "campaign.html").exists():
        words.append(str(page))
    if (sample := _worst_row(store)) is not None:
        words.append(f"`eagle3 show {sample}` (the row to look at first)")
    return " · ".join(words)


def _worst_row(store: Store) -> str | None:
    """The sample that the reports would have a person look at first."""
    for path in sorted(store.reports.glob("*.json")):
        try:
            worst = read_json(path).get("worst") or []
        except (StoreError, AttributeError):
            continue
        for line in worst:
            if line.get("grade") == "Q" and str(line.get("command", "")).startswith("eagle3 show "):
                return str(line["command"]).removeprefix("eagle3 show ")
    return None


def _unknown_words(usd: dict[str, float | None]) -> str:
    unknown = usd["unknown_usd"]
    return f" ({unknown:.4f} of it unknown spend: their price is not asked for any more)" if unknown else ""


def _foreign_words(usd: dict[str, float | None]) -> str:
    """What others spent, where the server told; the account only where it says more than the key."""
    words = f"; {usd['foreign_usd']:.4f} spent on this key by somebody else" if usd["foreign_usd"] else ""
    account, key = usd["account_foreign_usd"] or 0.0, usd["foreign_usd"] or 0.0
    return words + (f"; {account:.4f} spent on this account by somebody else" if account > key + 0.01 else "")


def corpus_outdated(campaign: Campaign, store: Store) -> list[str]:
    """Why the corpus would be built again: a phrase each; empty where it is current, missing, or cannot be built yet."""
    from eagle3_assets.corpus.change import reasons

    try:
        manifest = read_manifest(store.corpus)
        return reasons(manifest.inputs, Artifact(corpus.STAGE, campaign, store).inputs()) if manifest else []
    except Eagle3Error:
        return []


def _corpus_words(corpus: dict[str, Any], outdated: list[str]) -> str:
    if not corpus:
        return "not made yet"
    dropped = ", ".join(f"{n} {reason}" for reason, n in corpus["dropped"].items())
    left_out = f"; left out: {dropped}" if dropped else ""
    again = f"; outdated: {', '.join(outdated)} (`eagle3 run --until corpus` says which parts change)" if outdated else ""
    return f"{corpus['rows']:,} rows, {corpus['tokens']:,} tokens in {len(corpus['partitions'])} parts{left_out}{again}"


def _exact_words(score: dict[str, Any]) -> str:
    """All rows, and those that a trainer would see: the grades that promise something."""
    graded = [c for d in score["datasets"].values() for g, c in d["grades"].items() if g[0] in "AB" and c["rows"] > c["no_truth"]]
    rows, exact = sum(c["rows"] - c["no_truth"] for c in graded), sum(c["exact"] for c in graded)
    share = f"of the rows graded A or B {exact} of {rows}; " if rows else ""
    return f"rows whose every id equals the stand-in's truth: {share}by grade and provider: `eagle3 standin score`"


def _exact_cell(exact: dict[str, Any] | None) -> str:
    known = exact["rows"] - exact["no_truth"] if exact else 0
    if not exact or not known:
        return "no truth"
    return f"{exact['exact'] / known:.1%}"
