"""Definition of one setting: its accepted values, and how to parse its text."""

from dataclasses import dataclass
from typing import Final

Value = bool | int | float | str | list[int] | None
"""Value of a setting, or None if the setting is unset and has no default."""


@dataclass(frozen=True)
class Setting:
    """One row in the table of all settings."""

    name: str
    """Name of the environment variable."""
    kind: str
    """Type of the value.

    One of bool (0 or 1), int, float, choice (any case), text, ints (comma-separated), patterns (comma-separated, kept
    as text) and steps (kept as text, see ``steps_of``).
    """
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    engine: str = ""
    """Name of the _core.EngineConfig field that gets the value, or "" if there is none."""
    agreed: bool = False
    """True if all ranks use rank 0's value."""
    anyone: bool = False
    """True if a boolean setting is enabled on all ranks when any rank enables it, because that is safer."""
    flag: str = ""
    """Flag of horovodrun."""
    yaml: str = ""
    """Key in horovodrun's --config-file, as section.key."""
    yaml_inverted: bool = False
    """True if the YAML key means the opposite of the variable."""
    ignored: str = ""
    """Reason why the setting has no effect, as a clause for messages, or "" if it has an effect."""
    section: str = "Engine"

    def accepted(self) -> str:
        """Return a description of the accepted values, for messages and documentation."""
        if self.kind == "bool":
            return "0 or 1 (or false, true, no, yes)"
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "text":
            return "any text"
        if self.kind == "patterns":
            return "names or patterns separated by commas, as in NAME,PREFIX_*"
        if self.kind == "ints":
            return "integers of 0 or more, separated by commas"
        if self.kind == "steps":
            return "FIRST:END, step numbers with END excluded, as in 100:200"
        noun = "an integer" if self.kind == "int" else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {_plain(self.low)} to {_plain(self.high)}"
        return noun if self.low is None else f"{noun} of {_plain(self.low)} or more"

    def parse(self, text: str) -> Value:
        """Parse the setting's value from ``text``, or return the default if ``text`` is empty.

        Raises:
            ValueError: If the text is invalid. The message names the variable, its text and the accepted values.
        """
        text = text.strip()
        if not text:
            return self.default
        try:
            return self._convert(text)
        except ValueError:
            raise ValueError(f"{self.name} must be {self.accepted()}, got {text!r}") from None

    def _convert(self, text: str) -> Value:
        if self.kind == "text":
            return text
        if self.kind == "patterns":
            parts = [part.strip() for part in text.split(",")]
            return _within(",".join(parts), all(parts) and "=" not in text)
        if self.kind == "bool":
            return _within(text.lower() in _YES, text.lower() in _YES + _NO)
        if self.kind == "choice":
            return _within(text.lower(), text.lower() in self.choices)
        if self.kind == "ints":
            numbers = [int(part) for part in text.split(",")]
            return _within(numbers, min(numbers) >= 0)
        if self.kind == "steps":
            first, end = steps_of(text)
            return _within(text, first >= 0 and (end < 0 or first < end))
        if is_word(text):  # older programs set some numeric settings to a word such as "True", which counts as 0
            return 0 if (self.low or 0) <= 0 else self.default
        number: int | float = int(text) if self.kind == "int" else float(text)
        # Every number has bounds, so this check also rejects infinity and NaN.
        return _within(number, (self.low or 0) <= number <= (self.high if self.high is not None else 1e18))


def steps_of(text: str) -> tuple[int, int]:
    """Parse "FIRST:END" into the first step and the exclusive end, with -1 for no limit.

    An empty text means all steps, and "100:" means all steps from 100.

    Raises:
        ValueError: If the text is invalid.
    """
    if not text:
        return -1, -1
    first, colon, end = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, end)):
        raise ValueError
    return int(first or "0"), int(end or "-1")


_YES: Final = ("1", "true", "yes")
_NO: Final = ("0", "false", "no")


def is_off(text: str) -> bool:
    """Return True if a setting's text is empty or means "no", such as "0" or "false"."""
    return text.strip().lower() in ("", *_NO)


def is_word(text: str) -> bool:
    """Return True if a setting's text is a boolean word, such as "true"."""
    return text.lower() in ("true", "yes", "false", "no")


def _within(value: Value, fits: bool) -> Value:
    if not fits:
        raise ValueError
    return value


def _plain(number: float) -> str:
    return f"{number:g}" if number != int(number) else str(int(number))
