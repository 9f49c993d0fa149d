"""The self-test: before anything is stored, an engine proves on a probe that E_k is E_k and that the final state is pre-norm.

Belongs here: the probe, the measured distances, the refusal. Does not belong here: engines, checks of stored files (`verify.py`).

An off-by-one layer or a normed final state crashes nothing: it cost one 70B drafter 58.9 % -> 1.2 % acceptance (vllm#50170) and
gpt-oss 40 % -> 25 % (speculators#313). So an engine is compared with transformers' own `hidden_states`, computed another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Captured, Extractor
from eagle3_assets.states.format.final_norm import normed_share

if TYPE_CHECKING:
    import torch

PROBE_LENGTHS = (23, 7)
# Relative error (norm of the difference / norm of the reference) of one row alone, and of rows captured together. Neighbouring
# layers are 0.19 (kimi-mini) to 3.6 apart; bf16 rounding alone is 0.0017 (docs/research/hidden-states.md#1, #3;
# docs/research/kimi-mini.md#4).
ALONE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
TOGETHER = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
# An engine with kernels of its own rounds elsewhere: 0.009 to 0.020 in bf16 on vLLM 0.32 (docs/research/hidden-states.md#1).
# There a layer counts only when it is also this many times nearer than its neighbours.
OTHER_KERNELS = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 3e-2}
NEARER = 10.0
MOSTLY_NORMED = 0.9
GREEDY_PLACES, GREEDY_AGREES = 8, 0.75  # near ties of a bf16 head may fall either way


def probe_ids(vocab_size: int, lengths: Sequence[int] = PROBE_LENGTHS) -> list[tuple[int, ...]]:
    """Fixed pseudo-random rows of ids below `vocab_size` (a fixed linear congruence: the same on every machine and version)."""
    rows, state = [], 12_345
    for length in lengths:
        row = []
        for _ in range(length):
            state = (1_103_515_245 * state + 12_345) % 2**31
            row.append((state >> 8) % vocab_size)
        rows.append(tuple(row))
    return rows


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||, computed in fp32."""
    a, b = found.float(), expected.float()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def run_self_test(extractor: Extractor, layers: Sequence[int], stored_dtype: str) -> dict[str, Any]:
    """Measure the engine on the probe. Returns plain JSON (`passed` True, the distances); raises StateError with the distances.

    Proved: one row of states a token, ids echoed, all values finite; each E_k nearest to `hidden_states[k]` of all N+1, within
    tolerance; the final state is not `hidden_states[N]`, its norm is; rows captured together equal rows captured alone.

    Where the whole target cannot be loaded beside the engine, `reference_states` gives its first layers only: then the layers that
    have both neighbours there are proved (one is enough to see an engine that counts otherwise), and the final state by the head.
    """
    facts = extractor.describe()
    who = f"self-test of {facts['engine']} with {facts['model']}"
    probe = probe_ids(facts["vocab_size"])
    coarsest = "float32" if facts["dtype"] == stored_dtype == "float32" else "bfloat16"
    together = extractor.capture(probe, layers)
    alone = [extractor.capture([ids], layers)[0] for ids in probe]
    for ids, captured in zip([*probe, *probe], [*together, *alone], strict=True):
        require_sound(captured, ids, len(layers) + 1, facts["hidden_size"], f"{who}: the probe")
        if bad := nonfinite(captured.states):
            raise StateError(f"{who}: the probe: {bad}; nothing was extracted")
    reference = extractor.reference_states(probe[0])
    states, whole = alone[0].states, len(reference) == facts["num_hidden_layers"] + 1
    exact, own_kernels = coarsest == "float32", facts["engine"] == "vllm"
    compared = [(slot, k) for slot, k in enumerate(layers) if whole or k + 1 < len(reference)]
    measured = {
        "reference": "whole" if whole else "partial",
        "layers": [_layer_distances(states[:, slot], reference, k, exact) for slot, k in compared],
        "final": _final_distances(states[:, -1], reference, extractor, exact)
        if whole
        else _final_by_head(states[:, -1], probe[0], extractor),
        "together": max(_together(t.states, a.states, coarsest) for t, a in zip(together, alone, strict=True)),
        "tolerance": {
            "alone": (OTHER_KERNELS if own_kernels else ALONE)[coarsest],
            "together": TOGETHER[coarsest] if not own_kernels else OTHER_KERNELS[coarsest],
            "nearer": NEARER if own_kernels else 1.0,
        },
        "probe_tokens": sum(PROBE_LENGTHS),
    }
    failures = judge_distances(measured)
    if failures:
        raise StateError(f"{who}: {'; '.join(failures)}; nothing was extracted")
    return {"passed": True, **measured}


def judge_distances(measured: dict[str, Any]) -> list[str]:
    """What is wrong with measured (or stored) distances, one phrase each; empty when nothing is."""
    alone, together = measured["tolerance"]["alone"], measured["tolerance"]["together"]
    failures = [text for row in measured["layers"] if (text := _judge_layer(row, alone, measured["tolerance"]["nearer"]))]
    failures += (
        _judge_by_head(measured["final"]) if measured["reference"] == "partial" else _judge_final(measured["final"], alone)
    )
    if not measured["layers"]:
        failures.append("no layer was compared with a reference")
    if not measured["together"] <= together:
        failures.append(
            f"rows captured together differ from rows captured alone by {measured['together']:.3g} (tolerance {together:g})"
        )
    return failures


def _judge_layer(row: dict[str, Any], tolerance: float, nearer: float) -> str | None:
    k = row["layer"]
    beside = [d for n, d in row["near"].items() if int(n) != k]
    if row["nearest"] == k and row["to_k"] <= tolerance and all(nearer * row["to_k"] <= d for d in beside):
        return None
    neighbours = ", ".join(f"hidden_states[{n}] at {d:.3g}" for n, d in row["near"].items())
    times = f", and {nearer:g} times nearer than any other" if nearer > 1 else ""
    return f"E_{k} is not hidden_states[{k}]: nearest is hidden_states[{row['nearest']}] ({neighbours}; tolerance {tolerance:g}{times})"


def _judge_final(final: dict[str, float], tolerance: float) -> list[str]:
    if final["to_postnorm"] <= 2 * tolerance:
        return [
            f"the final state is post-norm: it is hidden_states[N] itself (distance {final['to_postnorm']:.3g}, "
            f"after another norm {final['norm_to_postnorm']:.3g})"
        ]
    if not final["norm_to_postnorm"] <= tolerance:
        return [
            f"the final state is not the input of the final norm: norm(final) is {final['norm_to_postnorm']:.3g} away from "
            f"hidden_states[N] (tolerance {tolerance:g}), final itself {final['to_postnorm']:.3g}"
        ]
    return []


def _judge_by_head(final: dict[str, float]) -> list[str]:
    if final["normed_share"] > MOSTLY_NORMED:
        return [
            f"the final state is post-norm: {final['normed_share']:.0%} of the tokens have norm 1 after division by the norm's weight"
        ]
    if final["greedy_agrees"] < GREEDY_AGREES * final["greedy_asked"]:
        return [
            f"the final state is not what the head reads: head(norm(final)) agrees with the server's own next id in "
            f"{final['greedy_agrees']} of {final['greedy_asked']} places"
        ]
    return []


def require_sound(captured: Captured, ids: Sequence[int], n_slots: int, hidden_size: int, where: str) -> None:
    """One row of states for every token, and the ids that were sent. Raises StateError naming `where`."""
    expected = (len(ids), n_slots, hidden_size)
    if tuple(captured.states.shape) != expected:
        raise StateError(f"{where}: the engine returned states of shape {tuple(captured.states.shape)}, expected {expected}")
    if captured.input_ids != tuple(ids):
        at = next(
            (i for i, (a, b) in enumerate(zip(captured.input_ids, ids, strict=False)) if a != b),
            min(len(captured.input_ids), len(ids)),
        )
        raise StateError(f"{where}: the engine ran other ids than it was sent (first difference at position {at})")


# The bits of an exponent that is all ones: infinity or NaN. Twelve times quicker than torch.isfinite on a CPU.
_EXPONENTS = {"torch.bfloat16": ("int16", 0x7F80), "torch.float32": ("int32", 0x7F800000)}


def nonfinite(states: torch.Tensor) -> str | None:
    """What is not finite in one row's states [T, slots, H] (bf16 or fp32, on the CPU); None when all is."""
    import torch

    width, exponent = _EXPONENTS[str(states.dtype)]
    bits = states.contiguous().view(getattr(torch, width))
    if not bits.numel() or int((bits & exponent).max()) != exponent:
        return None
    bad = ~torch.isfinite(states)
    token, slot = (int(v) for v in bad.nonzero()[0][:2])
    return f"{int(bad.sum())} values are NaN or infinite, the first at token {token}, slot {slot}"


def _layer_distances(states: torch.Tensor, reference: torch.Tensor, k: int, exact: bool) -> dict[str, Any]:
    """Distances of a captured E_k [T, H] to all of `reference` [n, T, H]; `near` shows k-1, k, k+1 and the nearest."""
    distances = [row_distance(states, reference[n], exact=exact) for n in range(len(reference))]
    nearest = min(range(len(distances)), key=distances.__getitem__)
    shown = sorted({max(k - 1, 0), k, min(k + 1, len(distances) - 1), nearest})
    return {"layer": k, "nearest": nearest, "to_k": distances[k], "near": {str(n): distances[n] for n in shown}}


def _together(together: torch.Tensor, alone: torch.Tensor, dtype: str) -> float:
    """How far a row captured in company [T, slots, H] is from the row captured alone."""
    return row_distance(together.flatten(1), alone.flatten(1), exact=dtype == "float32")


def row_distance(found: torch.Tensor, expected: torch.Tensor, *, exact: bool) -> float:
    """Relative error of a row's states [T, H]; in 16 bits the median over tokens.

    There a rounding may send single tokens of a mixture-of-experts model to another expert, 0.1 to 0.4 away, which says nothing about
    the engine. A wrong mask, position or layer moves every token of a row.
    """
    if exact:
        return relative_error(found, expected)
    a, b = found.float(), expected.float()
    return float(((a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-30)).median())


def _final_distances(states: torch.Tensor, reference: torch.Tensor, extractor: Extractor, exact: bool) -> dict[str, float]:
    import torch

    normed = extractor.final_norm().apply(states.to(torch.float32))
    return {
        "to_postnorm": row_distance(states, reference[-1], exact=exact),
        "norm_to_postnorm": row_distance(normed, reference[-1], exact=exact),
    }


def _final_by_head(states: torch.Tensor, ids: Sequence[int], extractor: Any) -> dict[str, float]:
    """`states` [T, H]: do norm and head lead from them to the ids that the engine itself would go on with?"""
    ends = range(len(ids) - GREEDY_PLACES, len(ids))
    asked = extractor.greedy_ids([ids[: end + 1] for end in ends])
    own = extractor.head().logits(states[list(ends)]).argmax(-1).tolist()
    return {
        "greedy_agrees": sum(a == b for a, b in zip(asked, own, strict=True)),
        "greedy_asked": len(asked),
        "normed_share": normed_share(states.float().numpy(), extractor.final_norm()),
    }
