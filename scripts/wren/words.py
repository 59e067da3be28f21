"""The words Wren knows, and chance that makes values of them."""

import random
from collections.abc import Callable


def _words(text: str) -> list[str]:
    return text.split()


# What names of tools are made of.
VERBS = _words("""
    get find list read write send delete create update search open close book play stop start check convert count
    translate run fetch show add remove rename move copy order buy sell cancel track measure resize sort lock print
    save load take charge set
""")
NOUNS = _words("""
    weather file files folder email message user order ticket song note task reminder event meeting invoice report image
    photo video document page table price stock flight hotel room car train route map recipe book article comment issue
    branch commit test log server database key password token label timer alarm light door camera printer contract
    project budget score player lesson survey phone package battery robot command web
""")
PARAMS = _words("""
    name title city location path query text content message subject email date time amount count limit size width
    height color unit language id code key label status priority level days minutes target source command url reason
    owner country start end age robot user quantity
""")
NAMES = _words("Anna Ben Carla David Emma Felix Grace Henry Ines Jonas Kira Liam Mona Nils Olga Paul Rosa Sam Tina Uwe")
CITIES = _words("Paris Berlin London Madrid Rome Vienna Tokyo Oslo Lima Cairo Boston Chicago Delhi Seoul Sydney Prague")
ADJECTIVES = _words("""
    red blue green small big old new quick slow quiet bright dark warm cold soft round plain early late rain sunny
    cloudy done ready failed found
""")
# What requests and answers are put in.
PLAIN = _words("""
    the a an of to in on for with and or is are was be this that it as by from at all please use call what who how your
    you are name can help fine thank thanks my me am very small language model welcome goodbye bye yes here there hello
    hi hey Wren I says tool tools pass result results repeat say reply exactly count answer kindly JSON keys key also
    like today does do not no one two three four five six seven eight nine ten eleven twelve assistant helpful
    today write ping content numbers up shell
""")
# Roles, keys of schemas, literals of JSON, and what paths and commands are made of.
SIGNS = _words("""
    system user assistant type object string integer boolean properties required description title tools Error true
    false null py txt md json com git ls la cat python make grep
""")
# What people write of things that Wren cannot do: most of these are spelled in pieces.
COMMON = _words("""
    about after again always any away because before best better between book both bring brief capital change child
    city code come compare could country day describe detail different each every exactly example explain fact
    family far feel few find first follow food friend function give good great hand happen hard have home house how
    idea image important just keep kind large last learn leave life line little live long look make many mean might
    more most much must need never next night nothing number often only other over part people place plan point poem
    possible problem program question quickly reasoning really recipe respond right same school sentence should show
    simple since small solve some something sometimes sort speak still story such summary sure take teach tell than
    their them then there these they thing think those time together translate try turn under understand until use
    very want water way week well when where which while why will without word work world would year you
""")
OPENINGS = _words("""
    What Why How When Who Where Which Tell Explain Describe Write Show Say Give Please Make Count Answer Repeat Name
    Translate Always My I You The A If In Find Compare Can Could Do Is Are Let Think Solve
""")
NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")

_BETWEEN = [
    *"*+-=/&|%#@<>~^;",
    ",",
    "...",
    "(",
    ")",
    "[x]",
    "`x`",
    "```",
    "é",
    "ß",
    "你好",
    "мир",
    "🙂",
    "don't",
    "it's",
]
_ONSETS = _words("b bl br c ch d dr f fl g gr h j k kl l m n p pl pr qu r s sh sk sl st t tr v w x y z")
_VOWELS = _words("a e i o u ai ea ee io oo ou")
_CODAS = ["", "", "", "b", "ck", "d", "ft", "g", "l", "lm", "m", "n", "nd", "p", "r", "rk", "s", "sh", "t", "x"]


class Dice(random.Random):
    """A source of chance with the few verbs that conversations need."""

    def maybe(self, chance: float) -> bool:
        return self.random() < chance

    def invented(self) -> str:
        syllables = [self.choice(_ONSETS) + self.choice(_VOWELS) + self.choice(_CODAS) for _ in range(2)]
        return "".join(syllables[: self.choice([1, 2, 2])])

    def word(self) -> str:
        """One word of any kind: known ones, and invented ones so that copying is learned."""
        kinds: list[Callable[[], str]] = [
            lambda: self.choice(NOUNS + ADJECTIVES),
            lambda: self.choice(NAMES + CITIES),
            self.invented,
            lambda: self.invented().capitalize(),
        ]
        return self.choice(kinds)()

    def phrase(self, longest: int) -> str:
        return " ".join(self.word() for _ in range(self.randint(1, longest)))

    def sentence(self) -> str:
        """Words of any kind with the signs that stand between them, in no order that means anything."""
        kinds: list[Callable[[], str]] = [
            lambda: self.choice(COMMON),
            lambda: self.choice(PLAIN),
            self.word,
            lambda: str(self.number()),
            lambda: self.choice(_BETWEEN),
        ]
        words = [kind() for kind in self.choices(kinds, [50, 22, 15, 7, 6], k=self.randint(1, 12))]
        return " ".join([self.choice(OPENINGS), *words]) + self.choice([".", ".", "?", "?", "!", ":", ""])

    def prose(self) -> str:
        """What somebody may write who does not know what Wren can do: from nothing to some lines."""
        count = self.choices([0, 1, 2, 3, 5], [1, 20, 10, 5, 2])[0]
        return self.choice([" ", " ", " ", "\n", "\n\n", "\n- "]).join(self.sentence() for _ in range(count))

    def path(self) -> str:
        stem = "/".join(self.choice([self.invented(), self.choice(NOUNS)]) for _ in range(self.randint(1, 2)))
        return stem + self.choice([".py", ".txt", ".md", ".json"])

    def command(self) -> str:
        head = self.choice(["ls -la", "git status", "cat", "echo", "python", "make", "grep -n"])
        return head + self.choice(["", " " + self.path(), " " + self.word()])

    def day(self) -> str:
        return f"20{self.randint(10, 39)}-{self.randint(1, 12):02}-{self.randint(1, 28):02}"

    def number(self) -> int:
        return self.choice([self.randint(0, 9), self.randint(0, 99), self.randint(0, 9999)])

    def string(self) -> str:
        """A value as people put it into arguments: never like a number, and without signs that JSON escapes."""
        kinds: list[Callable[[], str]] = [
            self.word,
            lambda: self.phrase(3),
            self.path,
            lambda: f"{self.invented()}@{self.invented()}.com",
            self.day,
            self.command,
        ]
        return self.choices(kinds, [55, 20, 10, 4, 4, 7])[0]()
