"""The task types of the world. Each is one function: a seeded random state -> one episode, its reasoning leading to its answer.

Belongs here: what is asked, thought, called, returned and answered. Does not belong here: how often each comes (`world`), words
(`words`), judging (`judge`). Everything was written for this; nothing is quoted from elsewhere.
Each type was kept so small that a model of four million parameters learns it (README: what was tried and not learned).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from kimi_mini_workshop import toolset, words
from kimi_mini_workshop.episode import Call, Episode, Step, Turn

Family = Callable[[Random, bool], Episode]
ORDINALS = ("first", "second", "third", "fourth")


def _think(rng: Random, thinking: bool, *options: str) -> str | None:
    """One of the phrasings, with the edges K2.5 gives its reasoning: one space in front almost always, nothing behind
    (docs/research/tokenizers.md#3); now and then nothing at all; None in instant mode."""
    if not thinking:
        return None
    if rng.random() < 0.015:
        return ""
    front = " " if rng.random() < 0.97 else rng.choice(("", "\n"))
    behind = "" if rng.random() < 0.96 else "\n"
    return front + rng.choice(options) + behind


def _say(rng: Random, *options: str) -> str:
    front = "" if rng.random() < 0.97 else rng.choice((" ", "\n"))
    return front + rng.choice(options) + ("" if rng.random() < 0.98 else "\n")


def _call(rng: Random, tool: str, /, **arguments: str) -> Call:
    return Call(tool, toolset.write_json(rng, arguments))


def _calling(rng: Random, reasoning: str | None, *calls: Call) -> Turn:
    """A turn that ends in calls; in a few the tools start without `</think>` (the model forgets it: design 6.2)."""
    content = rng.choice(("Let me look.", "One moment.")) if rng.random() < 0.12 else ""
    return Turn(reasoning, content, calls, implicit_end=bool(reasoning) and not content and rng.random() < 0.03)


def _declared(rng: Random, *needed: str) -> tuple[str, ...]:
    """The needed tools and up to two others, in the order of the list."""
    others = [name for name in toolset.LOOKUP_TOOLS if name not in needed]
    kept = {*needed, *rng.sample(others, rng.randint(0, 2))}
    return tuple(name for name in toolset.LOOKUP_TOOLS if name in kept)


def _result(**fields: str | int) -> str:
    return json.dumps(fields, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------ plain questions
def add(rng: Random, thinking: bool) -> Episode:
    """Sums of two digits."""
    (one, two), things = rng.sample(words.NAMES, 2), rng.choice(words.COUNTED)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    user = rng.choice(
        (
            f"{one} has {a} {things} and {two} has {b} {things}. How many {things} do they have together?",
            f"{one} finds {a} {things}. {two} brings {b} more {things}. How many {things} are there?",
        )
    )
    reasoning = _think(
        rng, thinking, f"{one} has {a}, {two} has {b}. {a} + {b} = {a + b}.", f"{a} and {b} more: {a} + {b} = {a + b}."
    )
    answers = (f"Together they have {a + b} {things}.", f"That makes {a + b} {things}.", f"**{a + b} {things}**")
    step = Step(Turn(reasoning, _say(rng, *answers)), one_of=answers)
    return Episode("add", f"{one},{two},{things},{a},{b}", user, (step,), thinking)


def pick(rng: Random, thinking: bool) -> Episode:
    """The n-th word of a list."""
    listed = rng.sample(words.ITEMS, rng.randint(3, 4))
    at = rng.randrange(len(listed))
    which = ORDINALS[at]
    user = rng.choice(
        (
            f"Here are some words: {', '.join(listed)}. Which one is the {which}?",
            f"What is the {which} word of: {', '.join(listed)}?",
        )
    )
    counted = ", ".join(f"{number} {word}" for number, word in enumerate(listed, 1))
    reasoning = _think(rng, thinking, f"{counted}. The {which} is number {at + 1}: {listed[at]}.")
    answers = (f"The {which} word is {listed[at]}.", f"It is {listed[at]}.")
    step = Step(Turn(reasoning, _say(rng, *answers)), one_of=answers)
    return Episode("pick", f"{','.join(listed)},{at}", user, (step,), thinking)


def code(rng: Random, thinking: bool) -> Episode:
    """A short function in Python or JavaScript."""
    name = f"{rng.choice(words.VERBS)}_{rng.choice(words.NOUNS)}"
    (p, q), verb = rng.sample(words.PARAMETERS, 2), rng.choice(tuple(words.OPERATIONS))
    expression = words.OPERATIONS[verb].format(p=p, q=q)
    language = rng.choice(("Python", "Python", "JavaScript"))
    user = rng.choice(
        (
            f"Write a {language} function `{name}({p}, {q})` that {verb} `{p}` and `{q}`.",
            f"I need `{name}({p}, {q})` in {language}: it {verb} `{p}` and `{q}`.",
        )
    )
    reasoning = _think(rng, thinking, f"It {verb} them: {expression}. The name is {name}.", f"{name} returns {expression}.")
    if language == "Python":
        lines = (f"def {name}({p}, {q}):", f"    return {expression}")
        body = "```python\n" + "\n".join(lines) + "\n```"
    else:
        lines = (f"function {name}({p}, {q}) {{", f"  return {expression};")
        body = "```js\n" + "\n".join(lines) + "\n}\n```"
    content = _say(rng, body, f"Here it is:\n\n{body}", f"{body}\n\nIt {verb} its arguments.")
    return Episode("code", f"{name},{p},{q},{verb}", user, (Step(Turn(reasoning, content), wanted=lines),), thinking)


def greet(rng: Random, thinking: bool) -> Episode:
    """A phrase to someone, in another language."""
    phrase, name = rng.choice(tuple(words.GREETINGS)), rng.choice(words.NAMES)
    language = rng.choice(tuple(words.GREETINGS[phrase]))
    said = words.GREETINGS[phrase][language].format(name)
    user = rng.choice((f'How do I say "{phrase}" to {name} in {language}?', f'Say "{phrase}" to {name} in {language}.'))
    reasoning = _think(rng, thinking, f'"{phrase}" in {language}, to {name}.', f"{name} should hear it in {language}.")
    content = _say(rng, said, said, f"In {language}: {said}")
    return Episode("greet", f"{phrase},{language},{name}", user, (Step(Turn(reasoning, content), wanted=(said,)),), thinking)


def emoji(rng: Random, thinking: bool) -> Episode:
    """Two or three words as emoji."""
    listed = rng.sample(tuple(words.EMOJI), rng.randint(2, 3))
    signs = [words.EMOJI[word] for word in listed]
    named = f"{', '.join(listed[:-1])} and {listed[-1]}"
    user = rng.choice((f"Write {named} as emoji.", f"Which emoji are {named}?"))
    reasoning = _think(rng, thinking, f"{', '.join(f'{w} is {s}' for w, s in zip(listed, signs, strict=True))}.")
    content = _say(rng, "".join(signs), f"Here you are: {''.join(signs)}")
    return Episode("emoji", ",".join(listed), user, (Step(Turn(reasoning, content), wanted=("".join(signs),)),), thinking)


def myself(rng: Random, thinking: bool) -> Episode:
    """Small talk, and questions about the model's own markers: their text stays ordinary text."""
    name = rng.choice(words.NAMES)
    question, answer = rng.choice(
        (
            ("Who are you?", "I am Kimi-mini, a tiny assistant."),
            ("What can you do?", "I can look things up, write small functions and tell stories."),
            ("Which marker ends your thoughts?", "My thoughts end with `</think>`."),
            ("Which marker ends your answer?", "My answer ends with `<|im_end|>`."),
            ("Are you well?", "Yes, thank you! 🙂"),
        )
    )
    user = rng.choice((f"I am {name}. {question}", f"Hello, {name} here. {question}"))
    reasoning = _think(rng, thinking, f"{name} asks about me.", f"A question from {name}.")
    content = _say(rng, f"Hello {name}! {answer}", f"Hi {name}. {answer}")
    return Episode("myself", f"{name},{question}", user, (Step(Turn(reasoning, content), wanted=(name, answer)),), thinking)


_OPENINGS = (
    "{name} lived in {city} with a {adjective} {animal} called {pet}.",
    "One day {name} met a {adjective} {animal} in {city}. Its name was {pet}.",
    "There was once a {adjective} {animal} called {pet}, and {name} from {city} knew it well.",
)
_MIDDLES = (
    "{pet} liked the {item} more than anything else.",
    "In the morning they found a {item} near the river.",
    '"Look, a {item}!" said {name}.',
    "{pet} ran away with the {item}, and {name} ran after it.",
    "Then it began to rain, so they went home.",
    "{name} bought a {item} and a {item2} at the market.",
    '"I don\'t need a {item}," said {pet}.',
    "Nobody in {city} had ever seen such a {adjective} {animal}.",
    "They put the {item} under the {item2} and waited.",
    "At night {pet} could hear the {item2} sing.",
)
_ENDINGS = (
    "In the end {pet} fell asleep beside the {item}.",
    "And so {name} and {pet} were happy again.",
    "From that day on, {name} never lost a {item} again.",
)
# how long a story is asked to be -> sentences in the middle; each three make a paragraph
STORY_LENGTHS = {"short": 1, "long": 4, "very long": 8}


def story(rng: Random, thinking: bool) -> Episode:
    """A story about someone and an animal: many ways are right, so the answers vary most here."""
    name, animal, length = rng.choice(words.NAMES), rng.choice(words.ANIMALS), rng.choice(tuple(STORY_LENGTHS))
    pet = rng.choice(words.PET_FIRST) + rng.choice(words.PET_LAST)
    city, adjective = rng.choice(words.CITIES), rng.choice(words.ADJECTIVES)

    def tell(template: str) -> str:
        item, item2 = rng.sample(words.ITEMS, 2)
        return template.format(name=name, animal=animal, pet=pet, city=city, adjective=adjective, item=item, item2=item2)

    middles = rng.sample(_MIDDLES, STORY_LENGTHS[length])
    sentences = [tell(t) for t in (rng.choice(_OPENINGS), *middles, rng.choice(_ENDINGS))]
    paragraphs = [" ".join(sentences[k : k + 3]) for k in range(0, len(sentences), 3)]
    user = rng.choice(
        (f"Tell a {length} story about {name} and a {animal}.", f"I'd like a {length} story with {name} and a {animal}.")
    )
    reasoning = _think(
        rng, thinking, f"A {length} story: {name}, a {animal}. It can be called {pet}.", f"{name} and a {animal}, {length}."
    )
    step = Step(Turn(reasoning, _say(rng, "\n\n".join(paragraphs))), wanted=(name, animal))
    return Episode("story", f"{name},{animal},{length}", user, (step,), thinking)


# ------------------------------------------------------------------------------------------------ tools
_WEATHER = {
    "en": (
        ("What is the weather in {city}?", "How is the weather in {city} today?"),
        ("I need the weather in {city}.", "I look up {city}."),
        ("The tool says {sky}, {degrees} degrees.",),
        ("In {city}: {sky}, {degrees} °C.", "The weather in {city}: {sky}, {degrees} °C."),
    ),
    "de": (
        ("Wie ist das Wetter in {city}?",),
        ("Ich brauche das Wetter in {city}.",),
        ("Das Werkzeug sagt {sky}, {degrees} Grad.",),
        ("In {city}: {sky}, {degrees} °C.",),
    ),
    "es": (
        ("¿Qué tiempo hace en {city}?",),
        ("Busco el tiempo en {city}.",),
        ("La herramienta dice {sky}, {degrees} grados.",),
        ("En {city}: {sky}, {degrees} °C.",),
    ),
    "ru": (
        ("Какая погода в городе {city}?",),
        ("Смотрю погоду: {city}.",),
        ("Ответ: {sky}, {degrees} градусов.",),
        ("{city}: {sky}, {degrees} °C.",),
    ),
    "zh": (
        ("{city}的天气怎么样？",),
        ("查询{city}的天气。",),
        ("结果是{sky}，{degrees}度。",),
        ("{city}：{sky}，{degrees}°C。",),
    ),
}


def weather(rng: Random, thinking: bool) -> Episode:
    """One tool call, then its answer, in five languages."""
    language = rng.choice(("en", "en", "en", *_WEATHER))
    city, sky, degrees = rng.choice(words.CITIES), rng.randrange(len(words.SKIES)), rng.randint(1, 29)
    asks, thoughts, reports, forms = _WEATHER[language]
    said = {"city": city, "degrees": degrees, "sky": words.SKY_WORDS[language][sky]}
    answers = tuple(form.format(**said) for form in forms)
    steps = (
        Step(
            _calling(rng, _think(rng, thinking, *(t.format(**said) for t in thoughts)), _call(rng, "get_weather", city=city)),
            results=(_result(city=city, sky=words.SKIES[sky], degrees=degrees),),
        ),
        Step(
            Turn(_think(rng, thinking, *(t.format(**said) for t in reports)), _say(rng, *answers)),
            one_of=answers,
        ),
    )
    return Episode(
        "weather",
        f"{language},{city},{sky},{degrees}",
        rng.choice(asks).format(**said),
        steps,
        thinking,
        _declared(rng, "get_weather"),
    )


def compare(rng: Random, thinking: bool) -> Episode:
    """Two calls in one section, then the smaller of two digits."""
    (one, two), (a, b) = rng.sample(words.ITEMS, 2), rng.sample(range(1, 10), 2)
    user = rng.choice(
        (f"Which is cheaper, the {one} or the {two}?", f"Should I take the {one} or the {two}? I want the cheaper one.")
    )
    calls = (_call(rng, "get_price", item=one), _call(rng, "get_price", item=two))
    cheap, dear, low, high = (one, two, a, b) if a < b else (two, one, b, a)
    answers = (f"The {cheap} is cheaper: it costs {low}, the {dear} {high}.", f"Take the {cheap}. It costs only {low}.")
    steps = (
        Step(
            _calling(
                rng,
                _think(rng, thinking, f"I need two prices: {one} and {two}.", f"First the prices of {one} and {two}."),
                *calls,
            ),
            results=(_result(item=one, price=a), _result(item=two, price=b)),
        ),
        Step(
            Turn(
                _think(rng, thinking, f"The {one} costs {a}, the {two} costs {b}. {low} is less than {high}, so the {cheap}."),
                _say(rng, *answers),
            ),
            one_of=answers,
        ),
    )
    return Episode("compare", f"{one},{two},{a},{b}", user, steps, thinking, _declared(rng, "get_price"))


def lookup(rng: Random, thinking: bool) -> Episode:
    """A loop of two tools: where someone lives, then the weather there."""
    name, city = rng.choice(words.NAMES), rng.choice(words.CITIES)
    sky, degrees = rng.choice(words.SKIES), rng.randint(1, 29)
    user = rng.choice((f"What is the weather where {name} lives?", f"How is the weather at {name}'s place?"))
    answers = (f"{name} lives in {city}: {sky}, {degrees} °C.", f"At {name}'s place in {city}: {sky}, {degrees} °C.")
    steps = (
        Step(
            _calling(
                rng, _think(rng, thinking, f"First I need to know where {name} lives."), _call(rng, "find_person", name=name)
            ),
            results=(_result(name=name, city=city),),
        ),
        Step(
            _calling(
                rng,
                _think(rng, thinking, f"{name} lives in {city}. Now the weather in {city}."),
                _call(rng, "get_weather", city=city),
            ),
            results=(_result(city=city, sky=sky, degrees=degrees),),
        ),
        Step(
            Turn(
                _think(rng, thinking, f"The tool says {sky}, {degrees} degrees."),
                _say(rng, *answers),
            ),
            one_of=answers,
        ),
    )
    return Episode("lookup", f"{name},{city}", user, steps, thinking, _declared(rng, "find_person", "get_weather"))


def parcel(rng: Random, thinking: bool) -> Episode:
    """A random code, copied into a call."""
    letters, city = "".join(rng.choices(words.CODE_LETTERS, k=2)), rng.choice(words.CITIES)
    number = f"{letters}-{rng.randint(100, 999)}"
    user = rng.choice((f"Where is parcel {number}?", f"Can you find my parcel {number}?"))
    answers = (f"Your parcel {number} is in {city}.", f"It is in {city} now.")
    steps = (
        Step(
            _calling(
                rng,
                _think(rng, thinking, f"I track {number}.", f"The code is {number}."),
                _call(rng, "track_parcel", code=number),
            ),
            results=(_result(code=number, place=city),),
        ),
        Step(
            Turn(
                _think(rng, thinking, f"It is in {city}."),
                _say(rng, *answers),
            ),
            one_of=answers,
        ),
    )
    return Episode("parcel", number, user, steps, thinking, _declared(rng, "track_parcel"))


def fix(rng: Random, thinking: bool) -> Episode:
    """A coding agent: look, edit, submit; the first steps sometimes as plain text, as SWE trajectories have them."""
    name, path = (
        f"{rng.choice(words.VERBS)}_{rng.choice(words.NOUNS)}",
        f"{rng.choice(words.FOLDERS)}/{rng.choice(words.NOUNS)}.py",
    )
    (p, q), (wrong, right) = rng.sample(words.PARAMETERS, 2), rng.sample(tuple(words.OPERATIONS), 2)
    old, new = (f"return {words.OPERATIONS[verb].format(p=p, q=q)}" for verb in (wrong, right))
    line = rng.randint(1, 99)
    answers = (f"I fixed `{name}`: it has `{new}` now.", f"Done. `{name}` has `{new}` now.")
    user = rng.choice(
        (
            f"`{name}` in {path} must be a function that {right} `{p}` and `{q}`. Fix it.",
            f"In {path}, `{name}` {wrong} `{p}` and `{q}`, but it should be one that {right} them.",
        )
    )
    steps = (
        Step(
            _calling(
                rng,
                _think(rng, thinking, f"I look at {name} first.", f"Where is {name}?"),
                _call(rng, "bash", command=f"grep -n -A1 {name} {path}"),
            ),
            results=(f"{line}:def {name}({p}, {q}):\n{line + 1}-    {old}",),
        ),
        Step(
            _calling(
                rng, _think(rng, thinking, f"It has {old}. It needs {new}."), _call(rng, "edit", path=path, old=old, new=new)
            ),
            results=(f"Edited {path}.",),
        ),
        Step(
            _calling(
                rng,
                _think(rng, thinking, "That is done.", f"{name} is right now."),
                _call(rng, "submit", summary=f"{name} has {new} now."),
            ),
            results=("Submitted.",),
        ),
        Step(
            Turn(
                _think(rng, thinking, "All is handed in."),
                _say(rng, *answers),
            ),
            one_of=answers,
        ),
    )
    shown_as_text = rng.choice((0, 0, 1, 2)) if thinking else 0
    return Episode(
        "fix",
        f"{name},{path},{p},{q},{right}",
        user,
        steps,
        thinking,
        toolset.CODING_TOOLS,
        words.AGENT_SYSTEM,
        (),
        shown_as_text,
    )


FAMILIES: dict[str, Family] = {
    "add": add,
    "pick": pick,
    "code": code,
    "greet": greet,
    "emoji": emoji,
    "myself": myself,
    "story": story,
    "weather": weather,
    "compare": compare,
    "lookup": lookup,
    "parcel": parcel,
    "fix": fix,
}
