"""One life of a real store: a seed draws what its processes do and what happens to them and to the volumes.

Volumes fail within what is promised to be survived: at most f of them are damaged between two completed repairs; as
many as like may be away for a while, as long as none is damaged. A stream with one replica has its volume left whole.
What happens when, down to the file call in which a process is killed, is up to the machine: a seed repeats what is
tried, and mostly what comes of it.
"""

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from lives import faults
from lives.calls import WEIGHTS, Calls
from lives.crew import Crew, Script
from lives.ledger import NEVER, Append, Reader, Row, StreamLedger, Violation
from lives.messages import Batch
from lives.processes import Call, Nursery, Process
from lives.volumes import SOLO, Volumes

STREAMS = {"orders": ("orders.eu", "orders.us"), "notes": ("notes",)}
SUBJECTS = {**STREAMS, SOLO: ("solo.a", "solo.b")}
BOUTS = {
    "work": 12, "damage": 9, "away": 3, "closed": 1, "back": 3, "repair": 4, "image": 5, "verify": 1, "backup": 1,
    "recreate": 1, "replace": 1, "resize": 1, "replicas": 1,
}  # fmt: skip
DAMAGES = {
    "file": 6, "files": 5, "swap": 2, "folder": 2, "removed": 1, "blank": 1, "older": 4, "fork": 2, "stranger": 1,
    "sister": 1,
}  # fmt: skip


class Life:
    """Made of a seed; `run` raises Violation when a promise was not kept."""

    def __init__(self, seed: int, folder: Path, nursery: Nursery, without: Iterable[str] = ()) -> None:
        self.seed, self.folder = seed, folder
        self.random = Random(seed)
        self.without = set(without)
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self.replica_count = self.random.choice((3, 3, 5))
        self.bout_count = self.random.randrange(12, 26)
        self.volumes = Volumes(self, self.replica_count)
        self.calls = Calls(self)
        self.crew = Crew(self, nursery)
        self.streams: dict[str, StreamLedger] = {}
        self._moment = 0
        self._number = 0
        self._began = time.monotonic()

    # --- the run

    def run(self) -> None:
        self.note(f"seed {self.seed}: {self.replica_count} volumes, {self.bout_count} bouts")
        try:
            self._create()
            for _ in range(self.bout_count):
                bout = self.chosen({name: BOUTS[name] for name in BOUTS if name not in self.without})
                self.note(f"-- {bout}")
                getattr(self, f"_bout_{bout}")()
                if self.random.random() < 0.5:
                    self.look()
            self._end()
        finally:
            for process in self.crew.processes:
                process.end()
            for come_back in self.volumes.absent.values():
                come_back()

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.3f} {text}")

    def chosen(self, weights: dict[str, int]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def _create(self) -> None:
        settings = {
            "snapshot_every": self.random.choice((3, 8, 128)),
            "deleted_block_retention": self.random.choice(("0s", "1h")),
        }
        self.keeps_removed = settings["deleted_block_retention"] != "0s"
        self.note(str(settings))
        process = self.crew.start()
        self.crew.alone(process, Call("create", {"paths": _texts(self.volumes.paths), **settings}))
        process.is_open = True
        for name in SUBJECTS:
            self._make_stream(process, name)
        self._place()

    def _make_stream(self, process: Process, name: str) -> None:
        config: dict[str, Any] = {"name": name, "subjects": list(SUBJECTS[name]), "duplicate_window": "1h"}
        config["block_max_msgs"] = self.random.choice((3, 10, 1000))
        if name == SOLO:
            config["num_replicas"] = 1
        self.crew.alone(process, Call("add_stream", config, lambda result, _: self._adopt(name, result), writes=True))
        if name not in self.streams:
            return
        self._make_consumers(process, name)

    def _adopt(self, name: str, incarnation: str) -> None:
        self.streams[name] = StreamLedger(name, incarnation, SUBJECTS[name])

    def _make_consumers(self, process: Process, name: str) -> None:
        stream = self.streams[name]
        for consumer, wait in (("slow", "1h"), ("fast", "200ms")):
            subject = self.random.choice((None, SUBJECTS[name][0]))
            config: dict[str, Any] = {"name": consumer, "ack_wait": wait}
            config["on_data_loss"] = self.random.choice(("continue", "continue", "fail"))
            if subject:
                config["filter_subjects"] = [subject]
            reader = Reader(consumer, subject, forgets=consumer == "fast")
            call = Call("add_consumer", {"stream": name, **config}, writes=True)
            if self.crew.alone(process, call):
                stream.readers[consumer] = reader

    def now(self) -> int:
        self._moment += 1
        return self._moment

    def number(self) -> int:
        self._number += 1
        return self._number

    # --- bouts

    def _bout_work(self) -> None:
        first = self.crew.some_process()
        chosen = [first]
        if self.random.random() < 0.45:
            chosen.append(self.crew.some_process(chosen))
        happenings = []
        for process in chosen:
            draw = self.random.random()
            after = self.random.expovariate(1 / 0.03)
            if draw < 0.3:
                happenings.append((after, lambda one=process: self._kill(one)))
            elif draw < 0.36:
                happenings.append((after, lambda one=process: self._pause(one)))
                happenings.append((after + 0.08, lambda one=process: one.signal(signal.SIGCONT)))
        if self.random.random() < 0.08 and "away" not in self.without:
            path = self.random.choice(self.volumes.paths)
            happenings.append((self.random.expovariate(1 / 0.03), lambda: self.volumes.take_away(path)))
        if self.volumes.absent and self.random.random() < 0.3:
            path = self.random.choice(list(self.volumes.absent))
            back = lambda: self.volumes.come_back(path) if path in self.volumes.absent else None  # noqa: E731
            happenings.append((self.random.expovariate(1 / 0.03), back))
        scripts = {process: self._script() for process in chosen}
        self.crew.together(scripts, happenings)

    def _script(self) -> Script:
        names = [self.chosen(WEIGHTS) for _ in range(self.random.randrange(1, 7))]
        limit = None
        if self.random.random() < 0.12 and "limits" not in self.without:
            limit = ("descriptors", self.random.randrange(0, 14))
        return [lambda name=name: self._limited(getattr(self.calls, name)(), limit) for name in names]

    def _limited(self, call: Call | None, limit: tuple[str, int] | None) -> Call | None:
        if call is not None and limit is not None and call.name != "command":
            call.limit = limit
            self.counts["errors of the process"] += 1
        return call

    def _kill(self, process: Process) -> None:
        if process.call is not None:
            process.signal(signal.SIGKILL)
            self.counts["kills"] += 1

    def _pause(self, process: Process) -> None:
        if process.call is not None:
            process.signal(signal.SIGSTOP)
            self.counts["pauses"] += 1

    def _bout_damage(self) -> None:
        paths = self.volumes.may_damage()
        kinds = {name: weight for name, weight in DAMAGES.items() if name not in self.without}
        for path in self.random.sample(paths, min(len(paths), self.random.choice((1, 1, 2)))):
            if path not in self.volumes.may_damage() or not path.is_dir():
                continue
            kind = self.chosen(kinds)
            what = self._damage(path, kind)
            if what:
                self.volumes.damaged[path] = f"{kind}: {what}"
                self.note(f"   {path.name} {kind}: {what}")
                self.counts[f"damage: {kind}"] += 1

    def _damage(self, path: Path, kind: str) -> str:
        if kind == "older":
            image = self.volumes.images.get(path)
            return faults.put_older(path, image, self.random) if image is not None else ""
        if kind in faults.ON_VOLUMES:
            return faults.ON_VOLUMES[kind](path, self.random)
        source = {"fork": self._fork, "stranger": self._stranger, "sister": self._sister}[kind](path)
        if source is None:
            return ""
        shutil.rmtree(path)
        faults.copy_volume(source, path)
        self.volumes.wrong.add(path)
        return f"{source.relative_to(self.folder)} in its place"

    def _fork(self, path: Path) -> Path | None:
        """Write on a copy of the whole store; return its volume."""
        if self.volumes.impaired:
            return None
        number = self.number()
        home = self.folder / f"fork{number}"
        home.mkdir()
        for one in self.volumes.paths:
            faults.copy_volume(one, home / one.name)
        process = self.crew.start()
        self.crew.alone(process, Call("open", {"paths": _texts(home / one.name for one in self.volumes.paths)}))
        process.is_open = True
        for count in range(self.random.choice((1, 2, 5, 12))):
            batch = Batch(f"fork{number}-{count}", STREAMS["orders"][0], 2)
            self.crew.alone(process, Call("append", {"stream": "orders", "batch": batch}))
        self.crew.gone(process)
        return home / path.name

    def _stranger(self, path: Path) -> Path | None:
        number = self.number()
        home = self.folder / f"stranger{number}"
        process = self.crew.start()
        self.crew.alone(process, Call("create", {"paths": [str(home)]}))
        self.crew.gone(process)
        return home

    def _sister(self, path: Path) -> Path | None:
        others = [
            one for one in self.volumes.paths if one != path and one not in self.volumes.impaired and one.is_dir()
        ]
        return self.random.choice(others) if others else None

    def _bout_away(self) -> None:
        paths = self.volumes.may_leave()
        for path in self.random.sample(paths, min(len(paths), self.random.choice((1, 1, 1, 2, 3)))):
            self.volumes.take_away(path)

    def _bout_closed(self) -> None:
        paths = self.volumes.may_leave()
        if paths:
            self.volumes.close(self.random.choice(paths))

    def _bout_back(self) -> None:
        self.volumes.all_back()

    def _bout_image(self) -> None:
        """Keep what volumes hold now, for one of them to become that again."""
        for path in self.volumes.paths:
            if path not in self.volumes.impaired and path.is_dir():
                image = self.folder / f"{path.name}-image"
                shutil.rmtree(image, ignore_errors=True)
                faults.copy_volume(path, image)
                self.volumes.images[path] = image

    def _bout_verify(self) -> None:
        if self.random.random() < 0.5:
            report = self.crew.asked(Call("verify"))
        else:
            found = self.crew.asked(Call("command", {"arguments": ["verify", "--json", *self.store_option()]}))
            report = json.loads(found[1]) if found and found[1].startswith("{") else None
        self.check_verdict(report)

    def check_verdict(self, report: dict[str, Any] | None) -> None:
        if report is not None and not report["ok"] and not self.volumes.impaired:
            raise Violation(f"verify finds damage where there is none: {report}")

    def store_option(self) -> list[str]:
        return ["--store", ",".join(self.volumes.ways_in())]

    def _bout_backup(self) -> None:
        if self.volumes.is_blackout or self.volumes.solo_path in self.volumes.impaired:
            return
        number = self.number()
        home = self.folder / f"backup{number}"
        call = Call("backup_and_restore", {"directory": str(home), "paths": [str(home) + "-restored"]})
        began = self.now()
        contents = self.crew.asked(call)
        for name, rows in (contents or {}).items():
            self.streams[name].look(rows, began, self.now())
        self.counts["backups"] += contents is not None
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(str(home) + "-restored", ignore_errors=True)

    def _bout_repair(self) -> None:
        self._repair(self.random.random() < 0.3, self.random.random() < 0.2)

    def _repair(self, beside: bool = False, killed: bool = False) -> None:
        """Bring volumes back as an operator would, and repair until that is complete."""
        self.volumes.all_back()
        for path in self.volumes.wrong:
            shutil.rmtree(path, ignore_errors=True)
            if self.random.random() < 0.5:
                path.mkdir()
        self.volumes.wrong.clear()
        if self.volumes.is_blackout:
            self.volumes.excused_until = NEVER
        reports: list[dict[str, Any]] = []
        process = self.crew.some_process()
        call = self._repair_call(reports)
        scripts: dict[Process, Script] = {process: [lambda: call]}
        if beside:
            scripts[self.crew.some_process([process])] = self._script()
        after = self.random.expovariate(1 / 0.05)
        self.crew.together(scripts, [(after, lambda: self._kill(process))] if killed else [])
        attempts = 0
        while not (reports and reports[-1]["ok"]):
            attempts += 1
            is_decided = bool(reports and reports[-1]["set_aside"])  # nobody wants what a copy of the store had more
            if attempts > 1 + beside + is_decided:
                raise Violation(f"repair does not come to its end: {reports[-1:]}; {self.volumes.describe()}")
            self.crew.together({self.crew.some_process(): [partial(self._repair_call, reports, is_decided)]})
        if any(one["lost"] for one in reports):
            raise Violation(f"repair declared messages lost: {reports}")
        self.volumes.damaged.clear()
        self.volumes.touched.clear()
        self.volumes.excused_until = min(self.volumes.excused_until, self.now())
        self.counts["repairs"] += 1
        if beside:  # who wrote while a volume came back may have left it behind, which the next session sees to
            self.crew.asked(Call("maintain", writes=True))
        self._check_current()

    def _repair_call(self, reports: list[dict[str, Any]], discards: bool = False) -> Call:
        if self.random.random() < 0.7:
            arguments = {"discard_lost": discards}
            return Call("repair", arguments, done=lambda report, _: reports.append(report), writes=True)

        def done(result: tuple[int, str, str], _: float) -> None:
            if not result[1].startswith("{"):
                raise Violation(
                    f"jstream repair: exit code {result[0]}, {result[1]}{result[2]}; {self.volumes.describe()}"
                )
            reports.append(json.loads(result[1]))

        more = ["--discard-lost", "--force"] if discards else []
        return Call("command", {"arguments": ["repair", "--json", *more, *self.store_option()]}, done, writes=True)

    def _check_current(self) -> None:
        for name in self.streams:
            info = self.crew.asked(Call("info", {"stream": name}))
            if info is None:
                continue
            bad = [one for one in info["cluster"]["replicas"] if not one["current"]]
            digests = {one["digest"] for one in info["cluster"]["replicas"]}
            if bad or len(digests) > 1 or info["state"]["lost_ranges"]:
                raise Violation(f"after a repair {name} is not current everywhere: {info['cluster']}, {info['state']}")

    # --- bouts that change what the store is made of; each ends with a completed repair

    def _bout_recreate(self) -> None:
        if self.volumes.is_blackout or self.volumes.absent:
            return
        name = self.random.choice(list(SUBJECTS))
        if name == SOLO and self.volumes.solo_path in self.volumes.impaired:
            return
        process = self.crew.some_process()
        call = Call("delete_stream", {"stream": name}, writes=True)
        killed = (
            [(self.random.expovariate(1 / 0.01), lambda: self._kill(process))] if self.random.random() < 0.4 else []
        )
        self.crew.together({process: [lambda: call]}, killed)
        if killed:  # what it left is decided under the lock
            self.crew.asked(Call("maintain", writes=True))
        there = self.crew.asked(Call("incarnations"))
        if there is None:
            raise Violation("the streams cannot be listed")
        if name in there:
            if there[name] != self.streams[name].incarnation:
                raise Violation(f"{name} is another one, and nobody made it")
            if not killed:
                raise Violation(f"{name} is there after it was deleted")
            return
        self._make_stream(self.crew.some_process(), name)
        self._place()

    def _place(self) -> None:
        """Look where the stream with one replica is, and what the others tolerate."""
        tolerated = [len(self.volumes.paths) // 2]
        for name in self.streams:
            info = self.crew.asked(Call("info", {"stream": name}))
            replicas = info["cluster"]["replicas"]
            if name == SOLO:
                self.volumes.solo_path = Path(replicas[0]["path"])
            else:
                tolerated.append((len(replicas) - 1) // 2)
        self.volumes.tolerated = min(tolerated)

    def _changed(self, call: Call) -> None:
        """Carry out a change, perhaps killed in it; a repair then completes it."""
        process = self.crew.some_process()
        killed = self.random.random() < 0.4
        self.crew.together(
            {process: [lambda: call]},
            [(self.random.expovariate(1 / 0.05), lambda: self._kill(process))] if killed else [],
        )
        self._repair()
        paths = self.crew.asked(Call("paths"), self.crew.start())
        self.volumes.paths = [Path(path) for path in paths]
        self.volumes.leaving.clear()
        self._place()
        self.counts["changes of volumes"] += 1

    def _bout_replace(self) -> None:
        path = self.random.choice(self.volumes.paths)
        if self.volumes.absent or not self.volumes.impaired <= {path} or path in self.volumes.wrong:
            return
        names = self.crew.asked(Call("names"), self.crew.start())
        if names is None or path == self.volumes.solo_path and path in self.volumes.impaired:
            return
        number = self.number()
        target = self.folder / f"v{number}-new"
        name = names[self.volumes.paths.index(path)]
        self.volumes.leaving = {path}
        self._changed(Call("replace_volume", {"name": name, "path": str(target)}, writes=True))

    def _bout_resize(self) -> None:
        """From three volumes to five, or back."""
        if self.volumes.impaired:
            return
        number = self.number()
        if len(self.volumes.paths) == 3:
            targets = [self.folder / f"v{number}-{letter}" for letter in "ab"]
            self._changed(Call("add_volumes", {"paths": _texts(targets)}, writes=True))
        elif self.volumes.tolerated == 1:  # streams with five replicas keep their volumes
            names = self.crew.asked(Call("names"), self.crew.start())
            chosen = self.random.sample(names, 2)
            self.volumes.leaving = {self.volumes.paths[names.index(name)] for name in chosen}
            refused = lambda failure: failure.is_a("RequirementError")  # noqa: E731  # another stream has five replicas
            self._changed(Call("remove_volumes", {"names": chosen}, refused=refused, writes=True))

    def _bout_replicas(self) -> None:
        if self.volumes.impaired:
            return
        name = self.random.choice(list(STREAMS))
        count = self.random.choice([3, len(self.volumes.paths)])
        self._changed(Call("edit_stream", {"name": name, "num_replicas": count}, writes=True))

    # --- looking

    def look(self, process: Process | None = None, must: bool = False) -> None:
        """Read every stream whole."""
        process = process or self.crew.some_process()
        for stream in list(self.streams.values()):
            if process not in self.crew.processes:
                return
            call = Call("read", {"stream": stream.name})
            seen: list[Row] = []

            def done(
                rows: list[Row], ended: float, stream: StreamLedger = stream, call: Call = call, seen: list[Row] = seen
            ) -> None:
                stream.look(rows, call.began, ended, self.crew.settled, not self.crew.is_excused(call))
                seen.append((0, "", b""))

            call.done = done
            self.crew.alone(process, call)
            if must and not seen:
                raise Violation(f"{stream.name} cannot be read")

    # --- the end

    def _end(self) -> None:
        """Everything is brought back, and has to be there: on every volume, and for every consumer."""
        self.note("-- the end")
        self._repair()
        process = self.crew.start()
        self.crew.alone(
            process,
            self.calls.appending(
                self.streams["orders"], Append(self.calls.new_batch(self.streams["orders"], 1), self.now())
            ),
        )
        self.look(process, must=True)
        self.check_verdict(self.crew.asked(Call("verify")))
        for stream in self.streams.values():
            rows: list[Row] = self.crew.asked(Call("read", {"stream": stream.name}), process)
            for reader in stream.readers.values():
                self._drain(process, stream, reader, [row[0] for row in rows])
                stream.check_drained(reader, rows)
        self._check_each_majority()

    def _drain(self, process: Process, stream: StreamLedger, reader: Reader, sequences: list[int]) -> None:
        """Acknowledge everything that this consumer still gets, also what was handed to processes that are gone."""
        where = {"stream": stream.name, "consumer": reader.name}
        rest = [one for one in sequences if one not in reader.acked]
        reader.asked_again(rest)
        self.crew.asked(Call("nak", {**where, "sequences": rest}), process)
        for _ in range(100):
            if process not in self.crew.processes:
                process = self.crew.start()
            got: list[list[Any]] = []
            call = self.calls.fetching(stream, reader, 100)
            hear = call.done
            call.done = lambda rows, ended, hear=hear, got=got: (hear(rows, ended), got.append(rows))  # type: ignore[misc, func-returns-value]
            self.crew.alone(process, call)
            if not got:  # it stands before what was removed
                self.crew.asked(Call("reset", where), process)
                reader.was_reset()
                continue
            if not got[0]:
                info = self.crew.asked(Call("consumer_info", where), process)
                if info.get("num_skipped") and not stream.removals:
                    raise Violation(f"consumer {reader.name} of {stream.name} skipped what nobody removed: {info}")
                if info["num_pending"] or (info["num_ack_pending"] and not reader.maybe_acked):
                    raise Violation(f"consumer {reader.name} of {stream.name} gets nothing more, and has {info}")
                return
            self.crew.alone(process, self.calls.acknowledging(stream, reader, [row[0] for row in got[0]]))
        raise Violation(f"consumer {reader.name} of {stream.name} comes to no end")

    def _check_each_majority(self) -> None:
        """Everything can be read without any f volumes: what is called current is."""
        start = self.random.randrange(len(self.volumes.paths))
        for position in range(start, start + len(self.volumes.paths), 2):
            gone = {
                self.volumes.paths[(position + step) % len(self.volumes.paths)]
                for step in range(self.volumes.tolerated)
            }
            for path in sorted(gone):
                self.volumes.take_away(path)
            process = self.crew.start()
            left = [path for path in self.volumes.paths if path not in self.volumes.absent]
            opening = Call("open", {"paths": _texts(left), "read_only": True})
            self.crew.alone(process, opening)
            process.is_open = True
            for stream in self.streams.values():
                if stream.name == SOLO and self.volumes.solo_path in gone:
                    continue
                call = Call("read", {"stream": stream.name})
                call.done = lambda rows, ended, stream=stream, call=call: stream.look(rows, call.began, ended)  # type: ignore[misc]
                self.crew.alone(process, call)
            self.crew.gone(process)
            self.volumes.all_back()
            self.volumes.touched.clear()


def _texts(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths]
