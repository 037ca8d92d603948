"""Seeded generator of varied prompts for distillation.

Every kind has its own templates and draws from the word lists of `topics`. The held-out split uses other templates,
other topics, other names and other passages than the training split, so agreement measured there is agreement on
unseen prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specviz.models.distill import topics as words


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message: `kind` names the family of templates it came from."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Split:
    """The word lists of one split; `passages` are texts to summarise, question or rewrite."""

    held_out: bool
    topics: Sequence[str]
    names: Sequence[str]
    things: Sequence[str]
    places: Sequence[str]
    roles: Sequence[str]
    passages: Sequence[str] = field(default=())

    def pick(self, rng: random.Random, train: Sequence[str], held_out: Sequence[str]) -> str:
        return rng.choice(held_out if self.held_out else train)


_AUDIENCES = ("a child", "a ten-year-old", "a beginner", "my grandmother", "a five-year-old", "a student")


def _explain(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Explain {t} to {a}.",
            "Explain {t} in simple words.",
            "Explain {t}.",
            "What is special about {t}?",
            "Tell me about {t}.",
            "Can you explain {t} to {a}?",
            "Why do people care about {t}?",
            "How would you describe {t} to {a}?",
            "What should I know about {t}?",
            "Give me a short introduction to {t}.",
            "Write a simple explanation of {t} for {a}.",
            "Why is {t} important?",
            "Describe {t} in three sentences.",
            "I know nothing about {t}. Where do I start?",
            "What are {t} and how do they work?",
            "Teach me the basics of {t}.",
            "Describe the history of {t}.",
        ),
        ("Help {a} understand {t}.", "In plain English, what is {t}?", "Say a few words about {t} for {a}."),
    )
    return template.format(t=rng.choice(s.topics), a=rng.choice(_AUDIENCES))


def _story(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Write a short story for small children about {t}.",
            "Tell me a bedtime story about {n} and {t}.",
            "Write a story about a child named {n} who loves {t}.",
            "Write a short story about {t}.",
            "Tell a story about two friends, {n} and {m}, and {t}.",
            "Once upon a time there was a girl named {n} who dreamed of {t}. Continue the story.",
            "Write a fairy tale about {t}.",
            "Write a funny story about {t}.",
            "Tell a very simple story about {n} and {t}.",
            "Make up a story in which {n} learns something about {t}.",
        ),
        ("Please tell my daughter a story about {t}.", "Invent a gentle tale: {n} meets {m} because of {t}."),
    )
    return template.format(t=rng.choice(s.topics), n=rng.choice(s.names), m=rng.choice(s.names))


def _list(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "List {k} facts about {t}.",
            "Give me {k} tips about {t}.",
            "What are {k} reasons to like {t}?",
            "Write a numbered list of {k} things to know about {t}.",
            "Name {k} words related to {t}.",
            "What are the advantages and disadvantages of {t}?",
            "Make a bullet list of ideas for a lesson about {t}.",
            "Give {k} examples that show how {t} affect our lives.",
            "Suggest {k} titles for a book about {t}.",
            "Write {k} questions for a quiz about {t}.",
            "List the steps to learn about {t}.",
            "What are {k} common mistakes people make with {t}?",
            "Create a checklist about {t}.",
        ),
        ("Top {k} things about {t}, please.", "Enumerate {k} myths about {t}."),
    )
    return template.format(t=rng.choice(s.topics), k=rng.choice(("3", "4", "five", "5", "6", "seven", "10")))


def _math(rng: random.Random, s: _Split) -> str:
    a, b, c, d = (rng.randint(2, 60) for _ in range(4))
    n, m, t, p = rng.choice(s.names), rng.choice(s.names), rng.choice(s.things), rng.choice(s.places)
    template = s.pick(
        rng,
        (
            "{n} has {a} {t}. {m} gives {n} {b} more. How many {t} does {n} have now?",
            "{n} buys {a} {t} for ${b} each. How much does {n} pay in total?",
            "A shop in {p} has {big} {t}. It sells {a} in the morning and {b} in the afternoon. How many are left?",
            "{n} reads {a} pages every day for {c} days and then {b} pages on the last day. How many pages is that?",
            "There are {c} boxes with {a} {t} each. {n} takes away {b}. How many {t} remain?",
            "{n} earns ${a} an hour and works {b} hours a week. How much does {n} earn in {d} weeks?",
            "A train travels at {a} km per hour for {c} hours. How far does it go?",
            "{n} is {a} years old. {m} is {b} years older. What is the sum of their ages?",
            "What is {a} + {b}?",
            "Calculate {a} times {c} minus {b}.",
            "What is {pct}% of {hundred}?",
            "{n} had {big} {t}. {n} gave half of them to {m} and lost {c}. How many does {n} have?",
            "{n} and {m} share {big} {t} equally. How many does each of them get?",
            "A class of {big} children is split into groups of {c}. How many full groups are there?",
            "{n} saves ${a} each month. After {c} months {n} spends ${b}. How much money is left?",
            "{n} bakes {a} trays of {c} cakes. {m} eats {d} of them, and the rest are sold for ${b} each."
            " How much money do they make?",
            "Solve for x: {a}x + {b} = {big}.",
        ),
        (
            "On Monday {n} picks {a} {t}, on Tuesday {b}, and on Wednesday twice as many as on Monday."
            " How many {t} has {n} picked?",
            "A ticket to {p} costs ${a}, and a child pays ${c} less. What do {d} adults pay together?",
            "If {n} walks {a} minutes each way, {c} days a week, how many minutes is that?",
        ),
    )
    return template.format(
        n=n, m=m, t=t, p=p, a=a, b=b, c=rng.randint(2, 12), d=rng.randint(2, 9), big=a + b + rng.randint(4, 90) * 2,
        pct=rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 75)), hundred=rng.randint(1, 40) * 20,
    )  # fmt: skip


def _code(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Write a Python function that {task}.",
            "Write a {lang} function that {task}.",
            "How do I write {lang} code that {task}?",
            "Write a short {lang} program that {task} and explain it.",
            "Implement a function in {lang} that {task}.",
            "Show me a simple example of {concept} in {lang}.",
            "Explain {concept} in {lang} with an example.",
            "Write a Python class for {t}.",
            "Create an HTML page about {t}.",
            "Write a SQL query that lists all {things} sold in {p}.",
        ),
        ("I need a {lang} snippet that {task}.", "Give a worked example of {concept} using {lang}."),
    )
    task = s.pick(
        rng,
        (
            "adds two numbers", "reverses a string", "counts the vowels in a word", "finds the largest of some numbers",
            "checks whether a number is prime", "computes the factorial of a number", "sorts a list of names",
            "removes duplicates from a list", "reads a file and counts its lines", "returns the nth Fibonacci number",
            "converts Celsius to Fahrenheit", "checks whether a word is a palindrome", "merges two sorted lists",
            "computes the average of a list", "counts how often each word occurs", "finds the second largest number",
            "generates a random password", "prints a multiplication table", "computes the area of a circle",
            "finds the longest word in a sentence", "sums the digits of a number", "searches a sorted list",
            "removes spaces from a string", "swaps two variables", "validates an email address",
            "finds common elements of two lists", "rotates a list by k places", "computes the greatest common divisor",
            "groups words by their first letter", "downloads a web page", "parses a JSON string",
            "simulates rolling two dice", "plays a guessing game", "draws a triangle of stars", "transposes a matrix",
        ),
        ("capitalises every word", "checks balanced brackets", "flattens a nested list", "counts down from ten"),
    )  # fmt: skip
    concept = s.pick(
        rng,
        ("a loop", "a dictionary", "a class", "inheritance", "exceptions", "a list comprehension", "a function",
         "an if statement", "a while loop", "string formatting", "a set", "reading a file", "a lambda", "unit tests"),
        ("a generator", "a decorator", "a stack", "a queue"),
    )  # fmt: skip
    return template.format(
        task=task, concept=concept, lang=rng.choice(("Python", "Python", "JavaScript", "Java", "C", "C++")),
        t=rng.choice(s.topics), things=rng.choice(s.things), p=rng.choice(s.places),
    )  # fmt: skip


def _question(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Who invented {t}?", "When were {t} first described?", "Where can you find {t}?",
            "What is the capital of {c}?", "What language is spoken in {c}?", "How many people live in {p}?",
            "What is {p} famous for?", "What is the largest city in {c}?", "What is the currency of {c}?",
            "Who was the first president of {c}?", "What is the origin of {t}?", "Which country is known for {t}?",
            "How do {t} work?", "What is the difference between {t} and {u}?", "Are {t} dangerous?",
            "When did {c} become independent?", "What does the word for {t} mean?", "Who wrote about {t}?",
            "What comes first, {t} or {u}?", "How are {t} and {u} connected?", "Is it true that {t} changed the world?",
            "Where was the first museum of {t} opened?", "Who is the most famous person in the field of {t}?",
            "What river flows through {p}?", "When was {p} founded?", "Who plays the main role in a film about {t}?",
        ),
        (
            "What year did people start to study {t}?", "In which part of {c} is {p} found?",
            "Who discovered {t} first?", "How far is it from {p} to the capital of {c}?",
        ),
    )  # fmt: skip
    countries = s.pick(
        rng,
        ("France", "Japan", "Brazil", "Egypt", "Canada", "India", "Kenya", "Spain", "Mexico", "Norway", "Peru", "Italy",
         "Poland", "Greece", "China", "Nigeria", "Sweden", "Turkey", "Ireland", "Vietnam", "Argentina", "Germany"),
        ("Chile", "Finland", "Morocco", "Thailand"),
    )  # fmt: skip
    return template.format(t=rng.choice(s.topics), u=rng.choice(s.topics), c=countries, p=rng.choice(s.places))


def _writing(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Write a poem about {t}.", "Write a short paragraph about {t}.", "Write a letter to {n} about {t}.",
            "Write an email to my teacher about {t}.", "Write an email to my boss asking for a day off because of {t}.",
            "Write a polite email to {n} to say that the meeting about {t} is cancelled.",
            "Write a blog post introduction about {t}.", "Write a product description for something about {t}.",
            "Write an advertisement for {t}.", "Write a speech about {t}.", "Write a short essay about {t}.",
            "Write a thank-you note to {n} for a gift related to {t}.", "Write a travel blog post about {p}.",
            "Write a news report about {t} in {p}.", "Write a dialogue between {n} and {m} about {t}.",
            "Write a diary entry about a day with {t}.", "Write an invitation to a party about {t}.",
            "Write a persuasive paragraph: everyone should learn about {t}.", "Write a review of a film about {t}.",
            "Describe a walk through {p} in the morning.", "Write the opening of a novel set in {p}.",
            "Compose a complaint to a company in {p} that sells {things}.", "Write a song about {t} with a chorus.",
        ),
        (
            "Draft a short message to {n} about {t}.", "Compose four lines of verse about {t}.",
            "Sketch a scene in {p} where {n} talks about {t}.", "I need a cheerful announcement about {t}.",
        ),
    )  # fmt: skip
    return template.format(
        t=rng.choice(s.topics), n=rng.choice(s.names), m=rng.choice(s.names), p=rng.choice(s.places),
        things=rng.choice(s.things),
    )  # fmt: skip


def _role(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Pretend you are {r}. Tell me about {t}.", "You are {r}. Somebody asks you about {t}. Stay in character.",
            "Act as {r} and give me advice about {t}.", "Imagine you are {r}. Describe your day.",
            "Speak like {r}: what do you think of {t}?", "You are {r}. Explain {t} to {n}.",
            "Let's play a game: you are {r} and I am {n}. Start the conversation about {t}.",
        ),
        ("Take the part of {r} and answer: why {t}?", "As {r}, write to {n} about {t}."),
    )  # fmt: skip
    return template.format(r=rng.choice(s.roles), t=rng.choice(s.topics), n=rng.choice(s.names))


def _reason(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        (
            "Compare {t} and {u}.", "What would happen if there were no {t}?", "Which matters more, {t} or {u}? Why?",
            "Discuss how {t} shaped society.", "What is the relationship between {t} and {u}?",
            "Analyse the economic effects of {t}.", "How might {t} look in a hundred years?",
            "{n} is taller than {m}. {m} is taller than {o}. Who is the shortest?",
            "If all {things} are red and {n} has three {things}, what colour are they?",
            "{n} overtakes the person in third place in a race. What place is {n} in now?",
            "What ethical questions do {t} raise?", "Explain the scientific principles behind {t}.",
            "What evidence do we have about the origin of {t}?", "How can we measure {t}?",
            "Describe an experiment about {t}.", "Why do some people dislike {t}?",
        ),
        (
            "Argue for and against {t}.", "{n} sits left of {m}, and {o} sits right of {m}. Who sits in the middle?",
            "Suppose {t} vanished tomorrow. What changes for {u}?",
        ),
    )  # fmt: skip
    n, m, o = rng.sample(list(s.names), 3)
    return template.format(
        t=rng.choice(s.topics), u=rng.choice(s.topics), n=n, m=m, o=o, things=rng.choice(s.things)
    )  # fmt: skip


_GERMAN_TRAIN = (
    ("Der Bürgermeister", "Die Ministerin", "Ein junger Mann", "Die Regierung", "Das Unternehmen", "Meine Schwester",
     "Der Trainer", "Die Polizei", "Ein Sprecher der Stadt", "Die Universität", "Der Lehrer", "Die Zeitung",
     "Der Präsident", "Unser Nachbar", "Die Bank", "Der Verein", "Eine Gruppe von Forschern", "Das Gericht",
     "Die Europäische Union", "Der Arzt"),
    ("am Montag", "im vergangenen Jahr", "gestern Abend", "nach drei Wochen", "trotz des Regens", "in Berlin",
     "wegen der hohen Preise", "zum ersten Mal", "ohne Erfolg", "vor dem Rathaus", "im Sommer", "mit großer Freude",
     "in den letzten Monaten", "zusammen mit anderen", "auf einer Pressekonferenz", "nach Angaben der Behörden"),
    ("einen neuen Plan vorgestellt", "die alte Brücke gesperrt", "das Spiel gewonnen", "viel Geld verloren",
     "eine wichtige Entscheidung getroffen", "über die Zukunft gesprochen", "den Bericht veröffentlicht",
     "hundert neue Stellen geschaffen", "das Haus verkauft", "vor den Folgen gewarnt", "die Steuern gesenkt",
     "einen Brief geschrieben", "den Zug verpasst", "um Hilfe gebeten", "die Grenze geschlossen",
     "ein Buch über Musik gelesen", "den Vertrag unterschrieben", "die Kinder besucht", "mehr Zeit verlangt"),
    ("", ", aber niemand war überrascht", ", und das war richtig", ", obwohl es schwierig war",
     ", weil die Lage ernst ist", ", sagte ein Zeuge", ", damit alle zufrieden sind", ", wie die Zeitung berichtet"),
)  # fmt: skip
_GERMAN_HELD_OUT = (
    ("Die Bäckerin", "Ein alter Seemann", "Die Feuerwehr", "Der Bahnhof"),
    ("am frühen Morgen", "seit zwei Tagen", "in Hamburg", "kurz vor Weihnachten"),
    ("neue Fenster bekommen", "den Hafen verlassen", "lange gewartet", "eine Katze gerettet"),
    ("", ", doch keiner hat es bemerkt", ", weil der Wind so stark war"),
)


def _translate(rng: random.Random, s: _Split) -> str:
    def sentence() -> str:
        subject, when, what, rest = (rng.choice(part) for part in (_GERMAN_HELD_OUT if s.held_out else _GERMAN_TRAIN))
        verb = "haben" if subject.startswith(("Die Kinder", "Viele")) else "hat"
        return f"{subject} {verb} {when} {what}{rest}."

    text = " ".join(sentence() for _ in range(rng.choice((1, 1, 2))))
    template = s.pick(
        rng,
        ("Translate German to English: {g}", "Translate the sentence into English: {g}", "{g}\nTranslate to English.",
         "What does this mean in English? {g}", "Please translate from German to English:\n{g}"),
        ("Give me the English version of: {g}", "English translation, please: {g}"),
    )  # fmt: skip
    return template.format(g=text)


def _report(rng: random.Random, s: _Split) -> str:
    """A made-up news passage: 4 to 8 sentences on one event, with names and numbers worth asking about."""
    n, m, p, q, t = (rng.choice(part) for part in (s.names, s.names, s.places, s.places, s.topics))
    number, year, percent = rng.randint(3, 900), rng.randint(1950, 2024), rng.randint(4, 80)
    day = rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))
    body = rng.choice(("the city council", "a local school", "a group of students", "the national museum", "a charity",
                       "a small company", "the university", "a team of scientists", "the public library"))  # fmt: skip
    first = rng.choice((
        f"On {day}, {body} in {p} announced a new project about {t}.",
        f"({p}) -- A new centre for {t} will open in {p} this {rng.choice(('spring', 'summer', 'autumn', 'winter'))}, "
        f"{body} said on {day}.",
        f"{n} {m}son, {rng.randint(18, 80)}, has spent {rng.randint(2, 40)} years working on {t} in {p}.",
        f"More than {number} people met in {p} on {day} to talk about {t}.",
    ))  # fmt: skip
    rest = [
        f"The plan will cost about {number} thousand dollars and is expected to take {rng.randint(2, 9)} years.",
        f'"We have waited for this since {year}," said {n}, who leads the group.',
        f"According to a survey, {percent} percent of the people in {p} are interested in {t}.",
        f"Critics such as {m} say that the money should be spent on other things.",
        f"A similar idea was tried in {q} in {year}, but it was stopped after {rng.randint(2, 11)} months.",
        f"The first visitors are expected in {rng.choice(('March', 'May', 'June', 'September', 'October'))}.",
        f"{n} told reporters that the work began when {m} wrote a letter to {body}.",
        f"The building, which dates from {year - 40}, was empty for {rng.randint(3, 30)} years.",
        f"{rng.randint(10, 400)} volunteers from {p} and {q} have already offered their help.",
        "A decision is expected next week.",
    ]
    return " ".join([first, *rng.sample(rest, rng.randint(3, 7))])


def _passage(rng: random.Random, s: _Split) -> str:
    if s.passages and rng.random() < 0.5:
        return rng.choice(s.passages)
    return _report(rng, s)


def _summary(rng: random.Random, s: _Split) -> str:
    template = s.pick(
        rng,
        ("Summarize: {x}\nTL;DR:", "Summarize the following text.\n\n{x}", "{x}\n\nSummarize this in one sentence.",
         "Summarize: {x}", "What is the main point of this text?\n{x}", "Write a short summary of this article: {x}",
         "Give a headline for this report: {x}"),
        ("Shorten this text to the essentials:\n{x}", "{x}\n\nIn brief:"),
    )  # fmt: skip
    return template.format(x=_passage(rng, s))


def _given(rng: random.Random, s: _Split) -> str:
    question = s.pick(
        rng,
        ("Who is mentioned in the text?", "Where does it take place?", "How many people take part?", "What happened?",
         "Why is this important?", "When did it start?", "What does the text say about the cost?", "What comes next?",
         "Who is against the plan?", "What is the text about?", "How long will it take?"),
        ("Which places are named?", "What number stands out?", "What is known so far?"),
    )  # fmt: skip
    template = s.pick(
        rng,
        ("{x}\n\nQuestion: {q}", "Answer the question based on the text.\nText: {x}\nQuestion: {q}",
         "Use the passages below to answer.\n\nPassage 1: {x}\n\nPassage 2: {y}\n\nQuestion: {q}\nAnswer:",
         "Read this: {x}\n{q}", "Context: {x}\n\n{q}"),
        ("From the notes below, answer: {q}\n\n{x}", "{q}\n---\n{x}"),
    )  # fmt: skip
    return template.format(x=_passage(rng, s), y=_report(rng, s), q=question)


def _rewrite(rng: random.Random, s: _Split) -> str:
    sentence = _report(rng, s).split(". ")[0].rstrip(".") + "."
    template = s.pick(
        rng,
        ("Rewrite this sentence in simpler words: {x}", "Correct the grammar of this text: {x}",
         "Make this sound more formal: {x}", "Rewrite as a question: {x}", "Extract all names and numbers: {x}",
         "List the places and people in this text as JSON: {x}", "Is the tone of this text positive or negative? {x}",
         "Turn this into a bullet list: {x}", "Continue this text: {x}", "Identify the main topic of this text: {x}"),
        ("Say this more politely: {x}", "Pull out the dates and places: {x}"),
    )  # fmt: skip
    return template.format(x=sentence if rng.random() < 0.5 else _passage(rng, s))


_KINDS: dict[str, tuple[Callable[[random.Random, _Split], str], float]] = {
    "explain": (_explain, 16),
    "story": (_story, 10),
    "list": (_list, 11),
    "math": (_math, 12),
    "code": (_code, 10),
    "question": (_question, 10),
    "writing": (_writing, 8),
    "role": (_role, 3),
    "reason": (_reason, 5),
    "translate": (_translate, 4),
    "summary": (_summary, 5),
    "given": (_given, 6),
    "rewrite": (_rewrite, 4),
}
KINDS = tuple(_KINDS)


def generate_prompts(seed: int, *, held_out: bool = False, passages: Sequence[str] = ()) -> Iterator[Prompt]:
    """Yield an endless, reproducible stream of distinct prompts.

    Args:
        seed: the same seed yields the same stream.
        held_out: use the templates and words kept apart for evaluation.
        passages: optional texts (for instance the target's own) that summaries and questions may be about, in
            addition to made-up reports.
    """
    split = _Split(
        held_out=held_out,
        topics=words.HELD_OUT_TOPICS if held_out else words.TRAIN_TOPICS,
        names=words.HELD_OUT_NAMES if held_out else words.TRAIN_NAMES,
        things=words.HELD_OUT_THINGS if held_out else words.TRAIN_THINGS,
        places=words.HELD_OUT_PLACES if held_out else words.TRAIN_PLACES,
        roles=words.HELD_OUT_ROLES if held_out else words.TRAIN_ROLES,
        passages=tuple(passages),
    )
    rng = random.Random(f"specviz-prompts-{seed}-{held_out}")
    seen: set[str] = set()
    kinds, weights = list(_KINDS), [weight for _, weight in _KINDS.values()]
    while True:
        kind = rng.choices(kinds, weights)[0]
        text = _KINDS[kind][0](rng, split)
        if text not in seen:
            seen.add(text)
            yield Prompt(kind, text)
