"""A treebank of a little grammar."""

import random

WORDS = {
    "DET": ["the", "a", "this"],
    "ADJ": ["old", "red", "slow"],
    "NOUN": ["dog", "cat", "tree", "river"],
    "VERB": ["sees", "likes", "finds"],
}


RELATIONS = {"DET": "det", "ADJ": "amod", "VERB": "root", "ADP": "case", "PUNCT": "punct"}


def made_up(draw):
    """A sentence of a little grammar: "of" belongs to the noun before it, "with" to the verb, "by" to one or other."""
    rows = []  # word, tag, head

    def phrase(head):
        begin = len(rows)
        kinds = ["DET"] * draw.randint(0, 1) + ["ADJ"] * draw.randint(0, 2)
        noun = begin + len(kinds) + 1
        rows.extend([draw.choice(WORDS[kind]), kind, noun] for kind in kinds)
        rows.append([draw.choice(WORDS["NOUN"]), "NOUN", head])
        return noun

    subject = phrase(None)
    rows.append([draw.choice(WORDS["VERB"]), "VERB", 0])
    verb = len(rows)
    rows[subject - 1][2] = verb
    last = phrase(verb)
    for _ in range(draw.randint(0, 2)):
        word = draw.choice(["of", "with", "by"])
        rows.append([word, "ADP", {"of": last, "with": verb, "by": draw.choice([last, verb])}[word]])
        last = phrase(len(rows))
    rows.append([".", "PUNCT", verb])
    lines = []
    for t, (word, tag, head) in enumerate(rows, 1):
        above = rows[head - 1][1] if head else None
        noun = "nmod" if above == "ADP" else "nsubj" if t < verb else "obj"
        lines.append(f"{t}\t{word}\t{word}\t{tag}\t_\t_\t{head}\t{RELATIONS.get(tag, noun)}\t_\t_\n")
    return "".join(lines)


def treebank(seed, count):
    draw = random.Random(seed)
    return "\n".join(made_up(draw) for _ in range(count))
