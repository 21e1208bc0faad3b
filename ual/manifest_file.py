"""The MANIFEST of an open log: what it says, and the one change of it that may be under way.

Replacing it takes two syncs, and removing what it has let go of a few more: too long for the thread
that owns the log. So a change is begun there, done by a job on any thread, and taken back there.
``content`` is the new one from the beginning, so that nobody goes for a file that is about to be
removed; a full disk brings the old one back.

One change at a time: who makes the next one settles the last, which may block, and builds on what
``content`` is then. Used by the thread that owns the log.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from onelog.ual.errors import DiskFull
from onelog.ual.files import Files
from onelog.ual.jobs import ManifestJob
from onelog.ual.manifest import Manifest
from onelog.ual.segments.chain import Segment
from onelog.ual.write_guard import WriteGuard


class ManifestFile:
    """See the module's text."""

    def __init__(
        self,
        files: Files,
        path: Path,
        content: Manifest,
        guard: WriteGuard,
        give_back: Callable[[tuple[Segment, ...]], None],
    ) -> None:
        """``give_back`` is told of segments that could not be let go of."""
        self.content = content
        self._files = files
        self._path = path
        self._guard = guard
        self._give_back = give_back
        self._under_way: ManifestJob | None = None

    def begin(
        self,
        content: Manifest,
        *,
        segments: tuple[Segment, ...] = (),
        snapshots: tuple[Path, ...] = (),
        added: tuple[Path, ...] = (),
    ) -> ManifestJob:
        """Return what replaces MANIFEST, and then removes the files of these.

        ``added`` is a new snapshot, which goes if MANIFEST cannot be written.
        """
        self._guard.refuse_if_failed()
        assert self._under_way is None, "the last change is not settled"
        job = ManifestJob(
            self._files, self._path, self.content, content, segments, snapshots, added
        )
        self.content, self._under_way = content, job
        return job

    def finish(self, job: ManifestJob) -> None:
        """Take the result of a job whose ``run`` has returned, settled before or not."""
        if job is self._under_way:
            self._under_way = None
            if not job.is_decided:
                self.content = job.before
                self._give_back(job.segments)
        if job.error is None:
            assert job.is_decided, "the job did not run"
        elif job.is_decided:
            self._guard.fail("remove what MANIFEST has let go of", job.error)
        else:
            self._guard.refuse_or_fail("write MANIFEST", job.error)

    def settle(self) -> None:
        """Finish the change that is under way, if there is one, on this thread."""
        job = self._under_way
        if job is not None:
            job.run()
            with suppress(DiskFull):  # whoever began it will hear of it
                self.finish(job)

    def save(self, content: Manifest) -> None:
        """Replace MANIFEST on this thread; a full disk leaves the old one."""
        job = self.begin(content)
        job.run()
        self.finish(job)
