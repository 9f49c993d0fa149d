"""One claim: the automaton accepts exactly the turns of the grammar, whole and cut, for every profile.

The oracle is a regular expression per profile over letters, written here from docs/research/tokenizers.md#4 and Qwen3's
template. It shares nothing with `assemble` or with the hypotheses: turns are drawn from the expression, not from our own parts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.targets.grammar import assemble, check, split
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets_tests.conftest import TOKENIZERS

# o ordinary, n the line break that parts Qwen3's calls (ordinary elsewhere), T <think>, C </think>, S Z tool section, B call, A arguments,
# E end of call, X end of turn, u another control token
_SECTION = "S(?:B[on]*A[on]*E)+Z"
_KIMI = f"[on]*(?:C[on]*(?:{_SECTION})?|{_SECTION})X"
_QWEN_CALLS = "B[on]*E(?:nB[on]*E)*"
ORACLES = {
    ("kimi-mini", True): _KIMI,
    ("kimi-mini", False): f"[on]*(?:{_SECTION})?X",
    ("kimi-k2.5", True): _KIMI,
    ("kimi-k2-thinking", True): f"T{_KIMI}",
    ("kimi-k2-instruct", True): f"[on]*(?:{_SECTION})?X",
    ("qwen3", True): f"T[on]*C[on]*(?:{_QWEN_CALLS})?X",
    ("qwen3", False): f"[on]*(?:{_QWEN_CALLS})?X",
}
LETTERS = "onTCSBAEZXu"


def letters_of(profile: Profile) -> dict[str, int]:
    tools = profile.tool_ids
    odd = [token for token in profile.special_names if token not in (*tools.values(), profile.end_id)]
    return {
        "o": profile.encode("a")[0],
        "n": profile.encode("\n")[0],
        "T": profile.think_open if profile.think_open is not None else profile.n_base + 22,
        "C": profile.think_close if profile.think_close is not None else profile.n_base + 23,
        "S": tools.get("section_begin", odd[0]),
        "B": tools["call_begin"],
        "A": tools.get("argument_begin", odd[1]),
        "E": tools["call_end"],
        "Z": tools.get("section_end", odd[2]),
        "X": profile.end_id,
        "u": odd[0],
    }


def mutated(turn: str, data: st.DataObject) -> str:
    """`turn` with up to two letters inserted, dropped or exchanged."""
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(turn)))
        letter, drop = data.draw(st.sampled_from(("", *LETTERS))), data.draw(st.integers(0, 1))
        turn = turn[:at] + letter + turn[at + drop :]
    return turn


# whole turns of one profile or another, with all that the grammar knows
EXAMPLES = ("oCoSBoAoEBAEZX", "oSBoAoEZX", "ToCnSBoAnEZX", "oSBoAoEBAEZX", "oX", "TnCoBoEnBoEX", "oBoEnBEX", "CX", "TCX", "X")


def neighbours(turn: str) -> set[str]:
    """Every turn that is one letter away, every one with a piece cut out, and every beginning."""
    at = range(len(turn) + 1)
    one = {turn[:k] + letter + turn[k + drop :] for k in at for letter in LETTERS for drop in (0, 1)}
    return one | {turn[:a] + turn[b:] for a in at for b in at if a <= b}


def judged(profile: Profile, turn: str, letter_ids: dict[str, int], pattern: str, thinking: bool) -> tuple[bool, bool]:
    """(whole, cut) as the expression says, after comparing the automaton with it."""
    ids = tuple(letter_ids[letter] for letter in turn)
    # a cut turn is a true beginning of some whole one, before its end
    whole = regex.fullmatch(pattern, turn) is not None
    cut = "X" not in turn and regex.fullmatch(pattern, turn, partial=True) is not None
    for truncated, accepted in ((False, whole), (True, cut)):
        assert (check(profile, ids, thinking=thinking, truncated=truncated) is None) == accepted, (turn, truncated)
        if accepted:
            assert assemble(profile, split(profile, ids, thinking=thinking, truncated=truncated)) == ids
    return whole, cut


@pytest.mark.slow
@pytest.mark.parametrize(("name", "thinking"), list(ORACLES))
def test_whole_and_cut_turns_are_accepted_exactly_when_the_expression_says_so(name: str, thinking: bool) -> None:
    if name != "kimi-mini" and not TOKENIZERS.exists():
        pytest.skip(f"{TOKENIZERS} is not there: set EAGLE3_SHARED_DATA to the folder of shared data")
    profile = load_profile(name, None if name == "kimi-mini" else Path(TOKENIZERS))
    letter_ids, seen = letters_of(profile), set()
    examples = [turn for turn in EXAMPLES if regex.fullmatch(ORACLES[name, thinking], turn)]
    assert examples, "every profile has its own turns among the examples"
    for turn in {near for example in examples for near in neighbours(example)}:
        seen.add(judged(profile, turn, letter_ids, ORACLES[name, thinking], thinking))
    assert seen >= {(True, False), (False, True), (False, False)}

    @given(st.from_regex(ORACLES[name, thinking], fullmatch=True) | st.text(LETTERS, max_size=8), st.data())
    @settings(max_examples=100, deadline=None)
    def claim(turn: str, data: st.DataObject) -> None:
        judged(profile, mutated(turn, data), letter_ids, ORACLES[name, thinking], thinking)

    claim()
