"""The string formats that are enforced, each as a regular expression that matches a whole string.

Where standards and the parsers that people use disagree these are the narrower: no leap seconds, capital T and Z.
"""

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = f"(?:{_YEAR}-(?:{_DAY})|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+\-]{_CLOCK})"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_WORD = r"[A-Za-z0-9!#$%&'*+/=?\^_`{|}~\-]+"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """Eight groups, or fewer with one "::" that stands for what is missing."""
    forms = [f"(?:{_HEX}:){{7}}{_HEX}"]
    for before in range(8):
        after = 7 - before
        head = f"(?:{_HEX}:){{{before - 1}}}{_HEX}" if before else ""
        tail = f"(?:(?:{_HEX}:){{0,{after - 1}}}{_HEX})?" if after else ""
        forms.append(f"{head}::{tail}")
    return "|".join(forms)


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "email": rf"{_WORD}(?:\.{_WORD})*@(?:{_LABEL}\.)+[A-Za-z]{{2,63}}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "ipv6": _ipv6(),
}
