"""What is wrong with the store that is shown: the sentence on top of every page, and the list behind it."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode

from spark_stream.check import Level, Limits, Problem, command_line, problems_of
from spark_stream.look.terminal import counted, show_span
from spark_stream.store_scan import Scan
from spark_stream.ui.site import Site

PROBLEM_COUNT_MAX = 100  # that a page lists
LIMITS = Limits()  # those of `jstream check`
_WORDS = {Level.WARNING: "Needs attention", Level.CRITICAL: "Critical"}


def _shown(site: Site, problem: Problem) -> dict[str, Any]:
    """Return a problem with the whole command that repairs it, and the page that shows it."""
    return {
        "level": problem.level.name.lower(),
        "what": problem.sentence,
        "why": problem.reason,
        "advice": problem.advice,
        "command": command_line(problem, site.command_store),
        "change": _change(problem),
        "page": _page(problem),
    }


def _change(problem: Problem) -> str:
    """Return the page that plans the repair; empty if pages cannot."""
    match problem.command:
        case "repair", "--take-back", stream:
            return f"/change/repair?{urlencode({'stream': stream, 'loss': 'take-back'})}"
        case "repair", "--discard-lost":
            return f"/change/repair?{urlencode({'loss': 'discard'})}"
        case ("repair" | "scrub" | "maintain") as kind, *streams:
            return f"/change/{kind}?{urlencode({'stream': streams[0]})}" if streams else f"/change/{kind}"
        case "consumer", "reset", stream, consumer:
            return f"/change/consumer-reset?{urlencode({'stream': stream, 'consumer': consumer})}"
    return ""


def _page(problem: Problem) -> str:
    about = problem.about
    if about.pipeline:
        return "/pipelines"
    if not about.stream:
        return "/volumes"
    stream = f"/streams/{quote(about.stream, safe='')}"
    if about.consumer:
        return f"{stream}/consumers/{quote(about.consumer, safe='')}"
    return f"{stream}/messages?at={about.sequence}" if about.sequence else f"{stream}/copies"


def health(site: Site, scan: Scan) -> dict[str, Any]:
    """Return `state` (ok, note, warning, critical), one `sentence`, and the `problems`; made once for each scan."""
    known = site.remembered
    if known is None or known[0] is not scan:
        known = site.remembered = scan, _health(site, scan)
    return known[1]


def _health(site: Site, scan: Scan) -> dict[str, Any]:
    problems = problems_of(scan, LIMITS, site.pipeline_statuses())
    level = problems[0].level if problems else Level.OK
    return {
        "state": level.name.lower(),
        "sentence": _sentence(scan, level, problems),
        "problems": [_shown(site, problem) for problem in problems[:PROBLEM_COUNT_MAX]],
        "problems_left_out": max(0, len(problems) - PROBLEM_COUNT_MAX),
    }


def _sentence(scan: Scan, level: Level, problems: list[Problem]) -> str:
    """Return the worst problem and how many there are besides, or what a healthy store is like."""
    if level in _WORDS:
        others = sum(problem.level > Level.NOTE for problem in problems) - 1
        more = f", and {counted(others, 'more problem')}" if others else ""
        return f"{_WORDS[level]}: {problems[0].sentence}{more}"
    volumes = scan.cluster["volumes"]
    lag = max((consumer["lag"]["messages"] for consumer in scan.consumers), default=0)
    scrubbed = [volume["last_scrub"] for volume in volumes]
    scrub = f"last scrub {age_text(min(scrubbed), scan.time_ns)}" if scrubbed and all(scrubbed) else "not scrubbed yet"
    return f"Healthy: {len(volumes)} of {len(volumes)} volumes current, worst lag {lag:,}, {scrub}"


def age_text(time_text: str, now_ns: int) -> str:
    """Return how long ago a time in RFC 3339 was, for people."""
    then = datetime.fromisoformat(time_text[:19]).replace(tzinfo=timezone.utc).timestamp()
    return f"{show_span(now_ns / 1e9 - then)} ago"


def worst_lag(scan: Scan) -> Mapping[str, Any] | None:
    """Return the consumer that is furthest behind in messages, None if there is none."""
    return max(
        scan.consumers, key=lambda consumer: (consumer["lag"]["messages"], consumer["lag"]["seconds"]), default=None
    )
