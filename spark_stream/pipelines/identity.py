"""Under which identity a batch is stored: the same for the same rows, whenever they come again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who hands a batch over, and which one it is."""

    app: str
    number: int  # grows from batch to batch of one `app`
    query: str = ""  # the id of the streaming query, empty for a backfill

    def of_dead_letters(self) -> "Identity":
        return Identity(f"{self.app}/dead-letters", self.number)
