"""What the parser of the command line finds wrong, in the words of all other errors.

Source: the sentences of typer/_click/exceptions.py, parser.py, types.py and typer/_types.py, 0.28. One that is not
known here is left as it is.
"""

import re

_NAME = r"'?(?P<name>[^']+?)'?"
_COMPLAINTS = (
    (rf"Missing (?P<kind>argument|option) {_NAME}(\. Choose from:\s*(?P<choices>.*))?", "{kind} {name} is missing"),
    (rf"Invalid value for {_NAME}: (?P<rest>.*)", "{name}: {rest}"),
    (r"Got unexpected extra argument\(s\) \((?P<rest>.*)\)", "unexpected argument: {rest}"),
    (rf"Option {_NAME} requires an argument", "option {name} needs a value"),
    (rf"Option {_NAME} does not take a value", "option {name} takes no value"),
)
_VALUES = (
    (r"(?P<value>.*) is not a valid int( range)?", "{value} is not a whole number"),
    (r"(?P<value>.*) is not a valid float( range)?", "{value} is not a number"),
    (r"(?P<value>.*) is not in the range x>=(?P<least>\S+)", "{value} is not {least} or more"),
    (r"(?P<value>.*) is not in the range (?P<least>\S+)<=x<=(?P<most>\S+)", "{value} is not {least} to {most}"),
)
_CHOICE = re.compile(r"'(?P<value>.*)' is not one of (?P<choices>'.*')")


def in_our_words(complaint: str) -> str:
    """Return what the parser said, without a full stop, as all other errors of a command are put."""
    complaint = complaint.rstrip(".")
    for pattern, sentence in _COMPLAINTS:
        match = re.fullmatch(pattern, complaint, re.DOTALL)
        if match is not None:
            parts = match.groupdict()
            choices = parts.get("choices")
            valid = f"; valid values are {', '.join(choices.split())}".replace(",,", ",") if choices else ""
            return sentence.format_map({**parts, "rest": _value(parts.get("rest") or "")}) + valid
    return complaint


def _value(complaint: str) -> str:
    choice = _CHOICE.fullmatch(complaint)
    if choice is not None:
        from storage_core.suggestions import did_you_mean  # needed by few errors, and heavy

        valid = re.findall(r"'([^']*)'", choice["choices"])
        return f"{choice['value']!r} is not one of {', '.join(valid)}{did_you_mean(choice['value'], valid)}"
    for pattern, sentence in _VALUES:
        match = re.fullmatch(pattern, complaint, re.DOTALL)
        if match is not None:
            return sentence.format_map(match.groupdict())
    return complaint
