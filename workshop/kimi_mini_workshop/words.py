"""The closed lists of the world: who, where, what, and the same few phrases in several languages.

Belongs here: words. Does not belong here: sentences around them (`families`), choosing (`world`).
Lists are short on purpose: a model of four million parameters has to know every word well before it can copy it.
"""

from __future__ import annotations

NAMES = (
    "Ana", "Ben", "Carla", "David", "Emma", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Klara", "Leo", "Mia", "Nils", "Olga", "Paul",
    "Rosa", "Sven", "Tara", "Yuki",
)  # fmt: skip
CITIES = (
    "Berlin", "Madrid", "Paris", "Oslo", "Lisbon", "Vienna", "Prague", "Dublin", "Cairo", "Nairobi", "Lima", "Quito", "Toronto",
    "Denver", "Boston", "Kyoto", "Seoul", "Taipei", "Sydney", "Warsaw",
)  # fmt: skip
ITEMS = (
    "lamp", "clock", "chair", "table", "bottle", "basket", "candle", "hammer", "ladder", "blanket", "guitar", "violin", "camera",
    "ticket", "pencil", "mirror", "kettle", "pillow", "carpet", "helmet",
)  # fmt: skip
COUNTED = ("apples", "pears", "plums", "coins", "stones", "books", "cards", "shells", "keys", "stamps")
ADJECTIVES = ("small", "old", "quiet", "brave", "hungry", "curious", "lazy", "happy", "grey", "clever")
# invented: the model has to spell these from pieces
PET_FIRST = ("Zor", "Mip", "Bru", "Tiv", "Quo", "Nel", "Fax", "Wim", "Dru", "Kel", "Sop", "Jub")
PET_LAST = ("bik", "nax", "lo", "gan", "pi", "ster", "wen", "do", "ril", "mus", "ket", "ba")

EMOJI = {
    "cat": "🐱", "dog": "🐶", "fish": "🐟", "bird": "🐦", "fox": "🦊", "bear": "🐻", "sun": "☀️", "moon": "🌙", "star": "⭐",
    "heart": "❤️", "fire": "🔥", "tree": "🌳", "cake": "🎂", "car": "🚗", "ship": "🚢", "house": "🏠", "family": "👨‍👩‍👧", "Japan": "🇯🇵",
}  # fmt: skip
ANIMALS = ("cat", "dog", "fish", "bird", "fox", "bear")

# phrase -> language -> how it is said to someone ({} is the name)
GREETINGS = {
    "good morning": {
        "German": "Guten Morgen, {}!", "Spanish": "¡Buenos días, {}!", "French": "Bonjour, {} !", "Russian": "Доброе утро, {}!",
        "Chinese": "{}，早上好！", "Japanese": "{}さん、おはようございます。", "Korean": "{}, 좋은 아침이에요!",
    },
    "good night": {
        "German": "Gute Nacht, {}!", "Spanish": "¡Buenas noches, {}!", "French": "Bonne nuit, {} !", "Russian": "Спокойной ночи, {}!",
        "Chinese": "{}，晚安！", "Japanese": "{}さん、おやすみなさい。", "Korean": "{}, 잘 자요!",
    },
    "thank you": {
        "German": "Danke, {}!", "Spanish": "¡Gracias, {}!", "French": "Merci, {} !", "Russian": "Спасибо, {}!",
        "Chinese": "谢谢你，{}！", "Japanese": "{}さん、ありがとう。", "Korean": "{}, 고마워요!",
    },
    "see you tomorrow": {
        "German": "Bis morgen, {}!", "Spanish": "¡Hasta mañana, {}!", "French": "À demain, {} !", "Russian": "До завтра, {}!",
        "Chinese": "{}，明天见！", "Japanese": "{}さん、また明日。", "Korean": "{}, 내일 봐요!",
    },
    "welcome": {
        "German": "Willkommen, {}!", "Spanish": "¡Bienvenido, {}!", "French": "Bienvenue, {} !", "Russian": "Добро пожаловать, {}!",
        "Chinese": "欢迎你，{}！", "Japanese": "{}さん、ようこそ。", "Korean": "{}, 어서 오세요!",
    },
}  # fmt: skip

# the sky as the weather tool names it -> as an answer in that language names it
SKIES = ("sunny", "cloudy", "rain", "snow", "fog")
SKY_WORDS = {
    "en": SKIES,
    "de": ("sonnig", "bewölkt", "Regen", "Schnee", "Nebel"),
    "es": ("soleado", "nublado", "lluvia", "nieve", "niebla"),
    "ru": ("солнечно", "облачно", "дождь", "снег", "туман"),
    "zh": ("晴天", "多云", "下雨", "下雪", "有雾"),
}

VERBS = ("get", "scale", "mix", "join", "check", "shift", "pack", "load", "find", "sort")
NOUNS = ("row", "item", "price", "total", "point", "node", "batch", "token", "page", "step")
PARAMETERS = ("a", "b", "x", "y", "n", "m")
FOLDERS = ("src", "lib", "app", "core")
CODE_LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"

# what a two-parameter function does -> (as a verb phrase, as an expression)
OPERATIONS = {
    "adds": "{p} + {q}",
    "subtracts": "{p} - {q}",
    "multiplies": "{p} * {q}",
    "divides": "{p} / {q}",
    "compares": "{p} == {q}",
}

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer in the language of the user.",
    "You are Kimi-mini, a tiny assistant. Keep it short.",
    "Answer as precisely as you can.",
)
AGENT_SYSTEM = "You are a coding agent in a sandbox. Use the tools, then submit."
