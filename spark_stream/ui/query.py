"""What a request asks for, checked: nothing of it is a path, and each number has bounds."""

from collections.abc import Mapping

from storage_core.quantities import looks_like_time, parse_duration_ns, parse_time_ns

TEXT_SIZE_MAX = 1024  # letters
NUMBER_MAX = 2**63 - 1


class Query:
    """The parameters behind the question mark."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    def text(self, name: str, default: str = "") -> str:
        """Raises ValueError for more than a line."""
        value = self._parameters.get(name, default).strip()
        if len(value) > TEXT_SIZE_MAX:
            raise ValueError(f"{name}: {len(value)} letters, at most {TEXT_SIZE_MAX} are taken")
        return value

    def number(self, name: str, default: int | None = None, minimum: int = 0, maximum: int = NUMBER_MAX) -> int | None:
        """Return a whole number within bounds, `default` if there is none. Raises ValueError."""
        value = self._parameters.get(name, "").strip().replace(",", "")
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 19 and minimum <= int(value) <= maximum):
            raise ValueError(f"{name}: {value[:40]!r} is not a whole number from {minimum} to {maximum}")
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first if nothing is said. Raises ValueError."""
        value = self._parameters.get(name, "") or choices[0]
        if value not in choices:
            raise ValueError(f"{name}: {value[:40]!r} is not one of {', '.join(filter(None, choices))}")
        return value

    def time_ns(self, name: str, now_ns: int) -> int | None:
        """Return a time, given as such or as a duration before now; None if nothing is said. Raises ValueError."""
        value = self.text(name)
        if not value:
            return None
        return parse_time_ns(value, name) if looks_like_time(value) else now_ns - parse_duration_ns(value, name)
