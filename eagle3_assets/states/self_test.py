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

if TYPE_CHECKING:
    import torch

PROBE_LENGTHS = (23, 7)
# Relative error (norm of the difference / norm of the reference) of one row alone, and of rows captured together. Neighbouring
# layers are 0.19 (kimi-mini) to 3.6 apart; bf16 rounding alone is 0.0017 (hidden-states.md sections 1, 3; kimi-mini.md 4).
ALONE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
TOGETHER = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}


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
    """
    facts = extractor.describe()
    probe = probe_ids(facts["vocab_size"])
    coarsest = "float32" if facts["dtype"] == stored_dtype == "float32" else "bfloat16"
    together = extractor.capture(probe, layers)
    alone = [extractor.capture([ids], layers)[0] for ids in probe]
    for ids, captured in zip([*probe, *probe], [*together, *alone], strict=True):
        require_sound(captured, ids, len(layers) + 1, facts["hidden_size"], "the probe")
    reference = extractor.reference_states(probe[0])
    measured = {
        "layers": [_layer_distances(alone[0].states[:, slot], reference, k) for slot, k in enumerate(layers)],
        "final": _final_distances(alone[0].states[:, -1], reference, extractor),
        "together": max(_together(t.states, a.states, coarsest) for t, a in zip(together, alone, strict=True)),
        "tolerance": {"alone": ALONE[coarsest], "together": TOGETHER[coarsest]},
        "probe_tokens": sum(PROBE_LENGTHS),
    }
    failures = judge_distances(measured)
    if failures:
        raise StateError(f"self-test of {facts['engine']} with {facts['model']}: {'; '.join(failures)}; nothing was extracted")
    return {"passed": True, **measured}


def judge_distances(measured: dict[str, Any]) -> list[str]:
    """What is wrong with measured (or stored) distances, one phrase each; empty when nothing is."""
    alone, together = measured["tolerance"]["alone"], measured["tolerance"]["together"]
    failures = []
    for row in measured["layers"]:
        k = row["layer"]
        if row["nearest"] != k or not row["to_k"] <= alone:
            neighbours = ", ".join(f"hidden_states[{n}] at {d:.3g}" for n, d in row["near"].items())
            failures.append(
                f"E_{k} is not hidden_states[{k}]: nearest is hidden_states[{row['nearest']}] ({neighbours}; tolerance {alone:g})"
            )
    final = measured["final"]
    if final["to_postnorm"] <= 2 * alone:
        failures.append(
            f"the final state is post-norm: it is hidden_states[N] itself (distance {final['to_postnorm']:.3g}, "
            f"after another norm {final['norm_to_postnorm']:.3g})"
        )
    elif not final["norm_to_postnorm"] <= alone:
        failures.append(
            f"the final state is not the input of the final norm: norm(final) is {final['norm_to_postnorm']:.3g} away from "
            f"hidden_states[N] (tolerance {alone:g}), final itself {final['to_postnorm']:.3g}"
        )
    if not measured["together"] <= together:
        failures.append(
            f"rows captured together differ from rows captured alone by {measured['together']:.3g} (tolerance {together:g})"
        )
    return failures


def require_sound(captured: Captured, ids: Sequence[int], n_slots: int, hidden_size: int, where: str) -> None:
    """One row of finite states for every token, and the ids that were sent. Raises StateError naming `where`."""
    import torch

    expected = (len(ids), n_slots, hidden_size)
    if tuple(captured.states.shape) != expected:
        raise StateError(f"{where}: the engine returned states of shape {tuple(captured.states.shape)}, expected {expected}")
    if captured.input_ids != tuple(ids):
        at = next(
            (i for i, (a, b) in enumerate(zip(captured.input_ids, ids, strict=False)) if a != b),
            min(len(captured.input_ids), len(ids)),
        )
        raise StateError(f"{where}: the engine ran other ids than it was sent (first difference at position {at})")
    bad = ~torch.isfinite(captured.states)
    if bool(bad.any()):
        token, slot = (int(v) for v in bad.nonzero()[0][:2])
        raise StateError(f"{where}: {int(bad.sum())} values are NaN or infinite, the first at token {token}, slot {slot}")


def _layer_distances(states: torch.Tensor, reference: torch.Tensor, k: int) -> dict[str, Any]:
    """Distances of a captured E_k [T, H] to all of `reference` [N+1, T, H]; `near` shows k-1, k, k+1 and the nearest."""
    distances = [relative_error(states, reference[n]) for n in range(len(reference))]
    nearest = min(range(len(distances)), key=distances.__getitem__)
    shown = sorted({max(k - 1, 0), k, min(k + 1, len(distances) - 1), nearest})
    return {"layer": k, "nearest": nearest, "to_k": distances[k], "near": {str(n): distances[n] for n in shown}}


def _together(together: torch.Tensor, alone: torch.Tensor, dtype: str) -> float:
    """How far a row captured in company [T, slots, H] is from the row captured alone.

    In 16 bits the median over tokens: there a rounding may send single tokens of a mixture-of-experts model to another expert,
    0.1 to 0.4 away, which says nothing about the engine. A wrong mask or position moves every token of a row.
    """
    if dtype == "float32":
        return relative_error(together, alone)
    a, b = together.float().flatten(1), alone.float().flatten(1)
    return float(((a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-30)).median())


def _final_distances(states: torch.Tensor, reference: torch.Tensor, extractor: Extractor) -> dict[str, float]:
    import torch

    normed = extractor.final_norm().apply(states.to(torch.float32))
    return {"to_postnorm": relative_error(states, reference[-1]), "norm_to_postnorm": relative_error(normed, reference[-1])}
