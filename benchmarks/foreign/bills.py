"""Worlds outside the hypotheses, part one: what is counted, which prompt, which backend, which tokens. Texts come as written.

Belongs here: mechanisms that no reading of a bill has. Does not belong here: changed texts (`rewriting`), learnable habits (`habits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.foreign.habits import Mechanism, end_not_billed, injects_spaces, strips_both
from benchmarks.foreign.model import Template
from benchmarks.foreign.sent import Scene, Sent, verbatim


def _billed(count: Callable[[Scene, Sent], int]) -> Mechanism:
    """A world that differs in the completion's bill alone."""

    def world(scene: Scene) -> Sent:
        sent = verbatim(scene)
        return replace(sent, billed_completion=max(1, count(scene, sent)))

    return world


def _up_to(step: int) -> Mechanism:
    def world(scene: Scene) -> Sent:
        sent = verbatim(scene)
        up = [-(-count // step) * step for count in (sent.billed_prompt, sent.billed_completion)]
        return replace(sent, billed_prompt=up[0], billed_completion=up[1])

    return world


def _words(_: Scene, sent: Sent) -> int:
    texts = [sent.reasoning, sent.content, *(f"{call.name} {call.arguments}" for call in sent.calls)]
    return round(1.3 * sum(len(text.split()) for text in texts))


def _characters(_: Scene, sent: Sent) -> int:
    return sum(map(len, (sent.reasoning, sent.content, *(call.arguments for call in sent.calls)))) // 4


def _others(scene: Scene, sent: Sent) -> int:
    texts = [sent.reasoning, sent.content, *(text for call in sent.calls for text in (call.id, call.arguments))]
    return sum(len(scene.model.other.encode_ordinary(text)) for text in texts) + 2


def _thought(scene: Scene) -> int:
    return len(scene.case.reasoning_ids)


def _arguments(scene: Scene) -> int:
    return sum(map(len, scene.case.argument_ids))


def _rest_of_three(scene: Scene, sent: Sent) -> int:
    """Counts by packets of a stream, the last one short: a multiple of three and the rest left out half of the time."""
    return sent.billed_completion - (sent.billed_completion % 3 if scene.rng.random() < 0.5 else 0)


def reasoning_told_apart_and_halved(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(sent, billed_completion=sent.billed_completion - _thought(scene) // 2, billed_reasoning=_thought(scene) // 2)


# ---------------------------------------------------------------------------------------------------- prompts
def _templated(template: Template) -> Mechanism:
    """The prompt by another template; the answer and its bill are sound."""

    def world(scene: Scene) -> Sent:
        sent = verbatim(scene)
        prompt = scene.case.prompt_ids(scene.model, template)
        return replace(sent, prompt_ids=prompt, billed_prompt=len(prompt))

    return world


def prompt_with_the_date(scene: Scene) -> Sent:
    """A gateway's system line whose length changes from day to day."""
    sent = verbatim(scene)
    day = int(scene.at // 3600) % 28 + 1
    prompt = scene.case.prompt_ids(
        scene.model, Template(more_system=f"Today is day {day} of the month{', a holiday' * (day % 3 == 0)}.")
    )
    return replace(sent, prompt_ids=prompt, billed_prompt=len(prompt))


def cached_part_unbilled(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(
        sent, billed_prompt=sent.billed_prompt - sent.billed_prompt // 64 * 64 if scene.rng.random() < 0.4 else sent.billed_prompt
    )


# ---------------------------------------------------------------------------------------------------- backends and tokens
def _either(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """Backends behind one name, drawn anew for each answer."""

    def world(scene: Scene) -> Sent:
        return scene.rng.choice(mechanisms)(scene)

    return world


def _off_path(rate: float, *, arguments_only: bool = False) -> Mechanism:
    def world(scene: Scene) -> Sent:
        case, draw = scene.case, scene.rng
        arguments = tuple(tuple(scene.model.off_path(ids, rate, draw)) for ids in case.argument_ids)
        changed = replace(case, argument_ids=arguments)
        if not arguments_only:
            thought, content = (tuple(scene.model.off_path(ids, rate, draw)) for ids in (case.reasoning_ids, case.content_ids))
            changed = replace(changed, reasoning_ids=thought, content_ids=content)
        return verbatim(replace(scene, case=changed))

    return world


def older_tokenizer(scene: Scene) -> Sent:
    """The weights of one version, the tokenizer of the one before: the model was served ids without the newest merges."""
    encode = scene.model.older.encode_ordinary
    case = scene.case
    arguments = tuple(tuple(encode(text)) for _, text in case.calls)
    changed = replace(
        case, reasoning_ids=tuple(encode(case.reasoning)), content_ids=tuple(encode(case.content)), argument_ids=arguments
    )
    return verbatim(replace(scene, case=changed))


def silent_other_model(scene: Scene) -> Sent:
    """One answer in five is another model's, counted in its own tokens; its ids are none of ours, so nothing is right."""
    sent = verbatim(scene)
    if scene.rng.random() > 0.2:
        return sent
    return replace(sent, billed_completion=_others(scene, sent), completion_ids=())


BILLS: dict[str, Mechanism] = {
    "bill up to 4": _up_to(4),
    "bill up to 8": _up_to(8),
    "bill words x 1.3": _billed(_words),
    "bill characters / 4": _billed(_characters),
    "bill other tokenizer": _billed(_others),
    "bill +1 odd minutes": _billed(lambda scene, sent: sent.billed_completion + int(scene.at // 60) % 2),
    "bill +-1 by chance": _billed(lambda scene, sent: sent.billed_completion + scene.rng.choice((-1, 0, 0, 1))),
    "bill reasoning twice": _billed(lambda scene, sent: sent.billed_completion + _thought(scene)),
    "bill no reasoning": _billed(lambda scene, sent: sent.billed_completion - _thought(scene)),
    "bill half the reasoning": reasoning_told_apart_and_halved,
    "bill tool turns +7": _billed(lambda scene, sent: sent.billed_completion + 7 * bool(sent.calls)),
    "bill calls +1 each": _billed(lambda scene, sent: sent.billed_completion + len(sent.calls)),
    "bill no arguments": _billed(lambda scene, sent: sent.billed_completion - _arguments(scene)),
    "bill no markers": _billed(lambda scene, sent: sent.billed_completion - bool(sent.calls) * (2 + 3 * len(sent.calls)) - 1),
    "bill long answers +1": _billed(lambda scene, sent: sent.billed_completion + int(sent.billed_completion > 128)),
    "bill thirds": _billed(_rest_of_three),
    "bill +1 with a system turn": _billed(
        lambda scene, sent: sent.billed_completion + int(scene.case.request["messages"][0]["role"] == "system")
    ),
    "prompt second template": _templated(Template(user="human", assistant="bot", system=None)),
    "prompt other role names": _templated(Template(user="person", assistant="helper")),
    "prompt own system line": _templated(Template(more_system="You are Kimi, an AI assistant created by Moonshot AI.")),
    "prompt with the date": prompt_with_the_date,
    "prompt last three messages": _templated(Template(keeps_last=3)),
    "prompt cached part unbilled": cached_part_unbilled,
    "two backends: verbatim, injects": _either((verbatim, injects_spaces)),
    "two backends: end billed or not": _either((verbatim, end_not_billed)),
    "two backends: verbatim, strips": _either((verbatim, strips_both)),
    "two backends: injects, strips unbilled": _either(
        (injects_spaces, lambda scene: replace(strips_both(scene), billed_completion=end_not_billed(scene).billed_completion))
    ),
    "ids off the path 1 %": _off_path(0.01),
    "ids off the path 10 %": _off_path(0.1),
    "arguments off the path 5 %": _off_path(0.05, arguments_only=True),
    "tokenizer one version off": older_tokenizer,
    "one in five by another model": silent_other_model,
}
