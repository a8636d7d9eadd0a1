"""What must hold of a simulated store after every step, whatever happened.

one history      an entry of the log never changes: its chain, and the state after it, wherever it is seen
P1               if power were lost now, everything acked would be there, and of the rest all or nothing
P3               the last sequence never falls
P4               a replica that is called current holds the same blocks as the others, and the same log
P5               blocks are where the manifest says; staged ones stay until their transaction is decided
"""

import hashlib
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.block_places import block_directory, block_path
from harness.model import seen_in_store
from harness.processes import Machine
from harness.replicas import replica_states
from harness.simulated_disk import NOTHING_KEPT, SimulatedDirectory, SimulatedDisk
from harness.whole.beyond import Beyond
from harness.whole.expectation import Violation

from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.commands import decode_envelope
from storage_core.metadata.invariants import check_state
from storage_core.metadata.state import StoreState, encode_state
from storage_core.store.store import Store
from storage_core.store.volume.identity import VolumeIdentity, read_identity
from storage_core.store.volume.log import DIRECTORY, VolumeLog
from storage_core.store.volume.log_contents import LogContents
from storage_core.store.volume.placement import holders
from storage_core.store.volume.state import VolumeState

if TYPE_CHECKING:
    from harness.whole.world import World


class Invariants:
    """The checks, and what they have to remember."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chains: dict[int, bytes] = {}  # by log index, from wherever it was seen
        self._states: dict[int, bytes] = {}  # by log index: digest of the state after that entry
        self._newest: tuple[int, StoreState] = (0, StoreState())
        self._seen: dict[str, int] = {}  # by process: the index that it last showed
        self.probe_count = self.repair_count = 0
        self.beyond = Beyond(world)

    # --- after each step

    def after_step(self) -> None:
        world = self._world
        looking = [one for one in world.processes if one.store is not None and not world.volumes.blacked_out]
        for process in looking:
            assert process.store is not None
            self._one_history(process.name, process.store)
        self._commit_records()
        if looking and len(world.expectation.models) == 1:
            self._nobody_good_is_retired(self._newest[1])
            self._blocks_are_there(self._newest[1])
            self._staged_blocks_are_there()
        if looking and world.plan.volume_count > 1 and world.random.random() < world.plan.probe_share:
            store = world.random.choice(looking).store
            assert store is not None
            self._current_is_true(store)
        happened = world.incident is not None and world.incident.happened
        share = max(world.plan.probe_share, 0.5) if happened else world.plan.probe_share
        if not world.volumes.blacked_out and world.random.random() < share:
            self.probe()

    def _one_history(self, name: str, store: Store) -> None:
        try:
            view = view_of(store)
        except StorageError:
            if self._world.plan.volume_count == 1:
                return
            raise
        if view.index < self._seen.get(name, 0):
            raise Violation(f"{name} has seen entry {self._seen[name]}, and now shows entry {view.index}")
        self._seen[name] = view.index
        self._chain(view.index, view.chain, f"what {name} shows")
        try:
            check_state(view.state)
        except CorruptionError as error:
            raise Violation(f"{name} shows a state after entry {view.index} that there cannot be: {error}") from error
        digest = hashlib.blake2b(encode_state(view.state), digest_size=16).digest()
        if self._states.setdefault(view.index, digest) != digest:
            raise Violation(f"{name} has another state after entry {view.index} than was seen before")
        if view.index >= self._newest[0]:
            self._last_sequences(view.state)
            self._newest = view.index, view.state

    def _chain(self, index: int, chain: bytes, where: str) -> None:
        known = self._chains.setdefault(index, chain)
        if known != chain:
            raise Violation(f"entry {index} is {chain.hex()[:8]} in {where}, and was {known.hex()[:8]} before")

    def _last_sequences(self, state: StoreState) -> None:
        for stream in state.streams.values():
            before = self._newest[1].by_incarnation(stream.incarnation)
            last = stream.next_sequence - 1
            if before is not None and stream.next_sequence < before.next_sequence:
                raise Violation(f"{stream.name}: the last sequence fell from {before.next_sequence - 1} to {last}")

    def _commit_records(self) -> None:
        """Every commit record is on the one chain, and of what is durable on its own volume."""
        world, files = self._world, self._world.machine.disk.process()
        durable: list[int] = []
        for position in world.volumes.undamaged:
            path = world.volumes.paths[position]
            try:
                identity = read_identity(files, path)
            except StorageError:
                if position in world.volumes.bad:
                    continue  # its metadata was being made anew
                raise
            record = VolumeLog(files, path, identity).read_mark().commit
            contents = durable_log(world.machine.disk, path, identity)
            durable.append(contents.tip[0])
            if record is None:
                continue
            self._chain(record.index, record.chain, f"the commit record of {path.name}")
            if record.index > contents.tip[0]:
                raise Violation(f"{path.name} has a commit record of {record.index}, and {contents.tip[0]} are durable")
        count = len(world.volumes.paths)
        holding = sum(index >= self._newest[0] for index in durable) + count - len(durable)
        if holding < count // 2 + 1:
            raise Violation(
                f"entry {self._newest[0]} was shown, and is durable on {holding} of {count} volumes: {durable}"
            )

    def _blocks_are_there(self, state: StoreState) -> None:
        """What the manifest names is on the good volumes that took it."""
        volumes = self._good_volumes()
        for stream in state.streams.values():
            for row in stream.blocks.rows:
                for volume_id in holders(stream, int(row["holders"])):
                    if volume_id in volumes:
                        directory = block_directory(volumes[volume_id], stream.written_as(int(row["first"])))
                        path = block_path(str(directory), bytes(row["block_id"]))
                        self._is_there(path, int(row["file_size"]), f"a block of {stream.name}")

    def _nobody_good_is_retired(self, state: StoreState) -> None:
        """What goes wrong in a process, or while a volume is away, is no fault of a disk."""
        for volume_id, path in self._good_volumes().items():
            if any(one.volume_id == volume_id and one.retired for one in state.voters):
                raise Violation(f"{path.name} is retired, and nothing was wrong with it")

    def _staged_blocks_are_there(self) -> None:
        """Blocks of a transaction that was not aborted are where the task put them."""
        (model,) = self._world.expectation.models
        for pending in self._world.operations.pending:
            volumes = self._good_volumes(pending.hurt_on)
            if pending.transaction.id in model.transactions:
                continue
            for block in pending.staged:
                if block.stream not in model.streams or model.lives[block.stream] != pending.lives[block.stream]:
                    continue
                for volume_id, _ in block.holders:
                    if volume_id in volumes:
                        directory = block_directory(volumes[volume_id], block.incarnation)
                        path = block_path(str(directory), block.summary.block_id)
                        self._is_there(path, block.summary.file_size, f"a staged block of {block.stream}")

    def _is_there(self, path: Path, size: int, subject: str) -> None:
        try:
            found = len(self._world.machine.disk.inode(path).content)
        except OSError as error:
            raise Violation(f"{subject} is gone: {path}") from error
        if found != size:
            raise Violation(f"{subject} has {found} bytes instead of {size}: {path}")

    def _current_is_true(self, store: Store) -> None:
        """A replica that is called current has every live block, by name and size."""
        files = self._world.machine.disk.process()
        for stream in store.view().state.streams.values():
            rows = stream.blocks.rows
            for replica in replica_states(store, stream):
                for row in rows if replica.current else ():
                    directory = block_directory(replica.path, stream.written_as(int(row["first"])))
                    path = block_path(str(directory), bytes(row["block_id"]))
                    try:
                        whole = files.file_size(path) == int(row["file_size"])
                    except OSError:
                        whole = False
                    if not whole:
                        raise Violation(f"{stream.name} on {replica.path.name} is called current without {path.name}")

    def _good_volumes(self, besides: Collection[int] = ()) -> dict[bytes, Path]:
        """Return where the volumes are that are not bad, by id, without those at these positions."""
        files, found = self._world.machine.disk.process(), {}
        for position in self._world.volumes.good:
            if position in besides:
                continue
            path = self._world.volumes.paths[position]
            found[read_identity(files, path).volume_id] = path
        return found

    # --- what if

    def probe(self) -> None:
        """Ask what would be there if power were lost now and nothing un-synced were kept."""
        self.probe_count += 1
        world = self._world
        machine = self._copy_without(world.volumes.bad if world.random.random() < 0.5 else ())
        machine.disk.lose_power(NOTHING_KEPT)
        if world.plan.volume_count == 1 and world.volumes.full:
            return
        store = machine.open(paths=world.volumes.ways_in())
        with store.session():
            pass
        shown = seen_in_store(store)
        if not world.expectation.allows(shown):
            world.expectation.look(shown, None, is_final=False)  # says what is shown, and what may be
            raise Violation("after a power loss now, something else would be shown")

    def _copy_without(self, positions: Any) -> Machine:
        """Return the machine as it is now, without these volumes and those that cannot be reached."""
        world = self._world
        machine = world.machine.copy()
        for position in {*positions, *world.volumes.outages}:
            path = world.volumes.paths[position]
            if path.name in machine.disk.directory(path.parent).names:
                machine.disk.take_away(path)
        return machine

    def is_known_to_be_old(self, position: int) -> None:
        """A volume that was put back to an older copy is called that, if the others say what was durable there.

        A copy from before a repair made the volume anew is of another instance, and foreign.
        """
        world = self._world
        machine = self._copy_without(())
        files, paths = machine.files(), world.volumes.paths
        good = [one for one in world.volumes.good if one not in world.volumes.outages]
        if not good or world.volumes.blacked_out:
            return
        identity = read_identity(files, paths[position])
        volume_id = identity.volume_id
        own = VolumeLog(files, paths[position], identity).read().tip[0]
        log = VolumeLog(files, paths[good[0]], read_identity(files, paths[good[0]])).read()
        said = max([decode_envelope(entry.payload).durable.get(volume_id, 0) for entry in log.entries], default=0)
        store = machine.open(read_only=True, paths=world.volumes.ways_in())  # a writable one would repair it
        standing = store.metadata.statuses(0.0).get(volume_id)
        voter = store.view().state.voter(volume_id)
        is_remade = voter is not None and voter.instance_id != identity.instance_id
        expected = VolumeState.FOREIGN if is_remade else VolumeState.ROLLED_BACK
        if own < said and (standing is None or standing.state != expected):
            raise Violation(f"{paths[position].name} ends at {own}, was durable up to {said}, and is {standing}")

    # --- verification and repair

    def verified(self, store: Store, report: dict[str, Any]) -> None:
        """Check what verify found: nothing, if no volume is bad.

        A commit record that was being written when power was lost is torn until the next session.
        """
        volumes = self._world.volumes
        found = [one for one in report["damage"] if not one["reason"].startswith("a commit record is torn")]
        if not found or volumes.bad or volumes.blacked_out or self._world.plan.volume_count == 1:
            return
        if self._world.running is not None and self._world.incident is not None and self._world.incident.happened:
            return
        raise Violation(f"verify found damage where there is none: {report['damage']}")

    def repair(self, store: Store) -> None:
        """Repair everything, and see that it is: then as many volumes may fail again."""
        world = self._world
        report = store.repair()
        if report["set_aside"] and all(damage["repaired"] for damage in report["damage"]):
            report = store.repair(discard_lost=True)  # nobody wants what a copy of the store had more
        if not report["ok"]:
            if world.running is not None and world.incident is not None and world.incident.happened:
                return  # something came in between; the next repair has to be complete
            raise Violation(f"the store was not repaired: {report}")
        self.repair_count += 1
        world.operations.note_hurt(world.volumes.bad)
        world.volumes.repaired()
        if world.incident is None or not world.incident.happened:
            self._all_agree(store)

    def _all_agree(self, store: Store) -> None:
        """Every copy is called current, and holds byte for byte what the others hold."""
        disk = self._world.machine.disk
        roots = {one.volume_id: one.path for one in store.volumes()}
        for stream in store.view().state.streams.values():
            states = replica_states(store, stream)
            if any(one.state != "current" or not one.current for one in states):
                raise Violation(f"repaired, and not all replicas of {stream.name} are current: {states}")
            if len({one.digest for one in states}) > 1:
                raise Violation(f"replicas of {stream.name} are current, and their digests differ: {states}")
            for row in stream.blocks.rows:
                copies = set()
                for volume_id in stream.placement:
                    directory = block_directory(roots[volume_id], stream.written_as(int(row["first"])))
                    path = block_path(str(directory), bytes(row["block_id"]))
                    copies.add(bytes(disk.inode(path).platter))
                if len(copies) > 1:
                    raise Violation(f"replicas of {stream.name} are current, and a block of theirs differs")

    # --- the end

    def at_the_end(self) -> None:
        """Everything acked is read from the good volumes alone; then, after a repair, from every quorum of volumes."""
        world = self._world
        self.probe()
        self.beyond.check()
        if world.plan.volume_count == 1:
            return
        world.repair_volumes()
        store = world.open(world.processes[0])
        self.repair(store)
        self.after_step()
        world.lose_power()
        everyone = range(world.plan.volume_count)
        for gone in combinations(everyone, world.plan.tolerated):
            machine = self._copy_without(gone)
            left = [path for position, path in enumerate(world.volumes.paths) if position not in gone]
            reader = machine.open(paths=left)
            shown = seen_in_store(reader)
            if not world.expectation.allows(shown):
                world.expectation.look(shown, None, is_final=True)


def durable_log(disk: SimulatedDisk, path: Path, identity: VolumeIdentity) -> LogContents:
    """Return what the log of a volume would say if power were lost now, and nothing un-synced were kept."""
    alone = SimulatedDisk()
    volume = Path("/disk/volume")
    alone.put_back(volume, SimulatedDirectory())
    alone.put_back(volume / DIRECTORY, disk.image_below(path / DIRECTORY))
    return VolumeLog(alone.process(), volume, identity).read()


def view_of(store: Store) -> Any:
    """Return the committed view of a store: state, index, term, chain."""
    return store.metadata.view(0.0)
