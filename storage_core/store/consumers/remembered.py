"""What a process remembers of messages that never change, so that asking again costs nothing; a bounded number."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Answers by question; the oldest one goes when there are too many. Threads may share it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._answers: dict[K, V] = {}

    def get(self, question: K) -> V | None:
        return self._answers.get(question)

    def put(self, question: K, answer: V) -> V:
        while len(self._answers) >= self._count_max:
            self._answers.pop(next(iter(self._answers)), None)
        self._answers[question] = answer
        return answer
