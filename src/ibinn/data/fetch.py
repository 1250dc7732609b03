"""Official archives over HTTP: resumed where they broke off, and named only once their checksum is right."""

import difflib
import errno
import hashlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

if sys.platform != "win32":
    import fcntl

RETRIES = 3  # further tries after a connection broke off or fell silent
CHUNK = 1 << 16  # bytes read at once

Progress = Callable[[int, int | None], None]  # bytes of this file that are here, of how many if known


class FetchError(ValueError):
    """A download that failed: one sentence that says what, where, and what to do."""


@dataclass(frozen=True)
class Archive:
    """One official file of the set `name`; checksum is "md5:<hex>", "sha256:<hex>" or the like."""

    name: str
    file_name: str
    url: str
    checksum: str
    n_bytes: int | None = None


def idx_archives(name: str, base: str, files: dict[str, tuple[str, int]]) -> tuple[Archive, ...]:
    """The four gzipped idx files of an MNIST-like set; files: name -> (MD5, bytes)."""
    return tuple(
        Archive(name, file, base + file, f"md5:{md5}", size) for file, (md5, size) in files.items()
    )


# CIFAR and Fashion-MNIST: the checksums that the publishers give on their pages. The publishers of MNIST
# give the sizes only; its checksums are those of torchvision, whose mirror this is. All are MD5: enough
# against damage, and nobody is known to be able to make other bytes for a given MD5.
ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "cifar10": (
        Archive(
            "cifar10",
            "cifar-10-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170498071,
        ),
    ),
    "cifar100": (
        Archive(
            "cifar100",
            "cifar-100-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169001437,
        ),
    ),
    "mnist": idx_archives(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
            "train-labels-idx1-ubyte.gz": ("d53e105ee54ea40749a09fcbcd1e9432", 28881),
            "t10k-images-idx3-ubyte.gz": ("9fb629c4189551a2d022fa330f9573f3", 1648877),
            "t10k-labels-idx1-ubyte.gz": ("ec29112dd5afa0611ce80d1b7f02629c", 4542),
        },
    ),
    "fashion_mnist": idx_archives(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
            "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 29515),
            "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 4422102),
            "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 5148),
        },
    ),
}


def fetch_set(
    name: str, folder: str | Path, on_progress: Progress | None = None, timeout: float = 30.0
) -> list[Path]:
    """The archives of a known set, in folder/name, fetched where they are not there yet.

    A sub-folder per set, because MNIST and Fashion-MNIST give their files the same names.
    on_progress starts anew with each file.
    """
    if name not in ARCHIVES:
        near = difflib.get_close_matches(name.lower(), ARCHIVES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FetchError(
            f"there is no official archive for {name!r}; {hint}the sets that can be fetched are "
            + ", ".join(ARCHIVES)
        )
    return [fetch(archive, Path(folder) / name, on_progress, timeout) for archive in ARCHIVES[name]]


def fetch(
    archive: Archive,
    folder: str | Path,
    on_progress: Progress | None = None,
    timeout: float = 30.0,
    url: str | None = None,
    pause: float = 1.0,
) -> Path:
    """The archive's path in folder, downloaded unless a file with its checksum is there already.

    Bytes go to `<file_name>.part`, which later calls continue; only when length and checksum are right
    does it take the good name, in one step. After `timeout` seconds of silence or a broken connection
    it tries again RETRIES times, `pause` seconds apart. `url` replaces the archive's own.
    Every failure that a person can meet is a FetchError.
    """
    job = Job(archive, url or archive.url, Path(folder), timeout, on_progress or (lambda done, total: None))
    if not is_web(job.url):
        raise FetchError(f"{job.url!r} is not a web address; give one that begins with http:// or https://")
    if not is_there(job):
        with only_one_in(job):
            if not matches(job, job.part):
                download(job, pause)
            settle(job)
    return job.target


@dataclass(frozen=True)
class Job:
    """What the steps of one download share."""

    archive: Archive
    url: str
    folder: Path
    timeout: float
    on_progress: Progress

    @property
    def target(self) -> Path:
        return self.folder / self.archive.file_name

    @property
    def part(self) -> Path:
        return self.folder / f"{self.archive.file_name}.part"

    @property
    def by_hand(self) -> str:
        return f"download {self.url} by hand into {self.folder}"


class Interrupted(Exception):
    """The connection broke off or fell silent; what came is in the .part file, and trying again may help."""


class WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not is_web(newurl):
            raise urllib.error.HTTPError(req.full_url, code, f"{msg}, to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


@contextmanager
def disk_errors(job: Job) -> Iterator[None]:
    """Turns what the file system refuses into a FetchError."""
    try:
        yield
    except OSError as error:
        why = reason(error)
        advice = "choose another folder or change its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why, advice = "the disk is full", "free some space there and run the command again to resume"
        raise FetchError(
            f"cannot store {job.archive.file_name} in {job.folder}: {why}; {advice}"
        ) from error


@contextmanager
def only_one_in(job: Job) -> Iterator[None]:
    """Makes the folder and keeps other processes out: two downloads would mix their bytes in one .part."""
    with disk_errors(job):
        job.folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # folders cannot be opened there, so there is no lock
        yield
        return
    with disk_errors(job):
        descriptor = os.open(job.folder, os.O_RDONLY)
    try:
        if not lock(descriptor):
            raise FetchError(
                f"another process is downloading into {job.folder}; wait for it and run the command again"
            )
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Whether this process may go on. Locking the folder itself leaves no file, and ends with the process."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # some network file systems cannot lock a folder: go on without
    return True


def is_there(job: Job) -> bool:
    """Whether the good file is there; another file under its name is the user's, and not overwritten."""
    with disk_errors(job):
        if not job.target.exists():
            return False
    if not matches(job, job.target):
        raise FetchError(
            f"{job.target} is there but is not the official file, whose checksum is {job.archive.checksum}; "
            f"move it away and run the command again"
        )
    return True


def matches(job: Job, path: Path) -> bool:
    """Whether path holds exactly the archive: its length, if known, and its checksum."""
    with disk_errors(job):
        if not path.exists() or job.archive.n_bytes not in (None, path.stat().st_size):
            return False
        return checksum(path, job.archive.checksum.partition(":")[0]) == job.archive.checksum


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of the file's bytes, as `<algorithm>:<hex>`."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def settle(job: Job) -> None:
    """Gives a complete .part the good name; deletes it and raises if its bytes are wrong."""
    if not matches(job, job.part):
        with disk_errors(job):
            job.part.unlink()
        raise FetchError(
            f"{job.url} gave bytes whose checksum is not {job.archive.checksum}, so they were deleted; "
            f"run the command again, or find the official {job.archive.file_name} and put it into {job.folder}"
        )
    with disk_errors(job):
        with open(job.part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(job.part, job.target)


def download(job: Job, pause: float) -> None:
    """Fills the .part file, trying again where the connection breaks off."""
    for retries_left in reversed(range(RETRIES + 1)):
        try:
            return append(job)
        except Interrupted as error:
            if not retries_left:
                raise FetchError(
                    f"{job.url} broke off {RETRIES + 1} times, the last time because {error}; "
                    f"run the command again to resume, or {job.by_hand}"
                ) from error
            time.sleep(pause)
    return None


def append(job: Job) -> None:
    """Adds to the .part file what is missing, or starts it again if the server will not resume."""
    answer = ask(job, resume_point(job))
    done = answer.start
    job.on_progress(done, answer.total)
    with answer.response, disk_errors(job), open(job.part, "ab" if done else "wb") as file:
        while chunk := read(job, answer.response):
            file.write(chunk)
            done += len(chunk)
            job.on_progress(done, answer.total)
            if answer.total is not None and done > answer.total:
                break  # not our file, and it might never end
    if answer.total is not None and done < answer.total:
        raise Interrupted(f"the connection closed after {done} of {answer.total} bytes")


def resume_point(job: Job) -> int:
    """How many bytes of the .part file can be kept: all, unless that is the whole length or more."""
    with disk_errors(job):
        size = job.part.stat().st_size if job.part.exists() else 0
    return size if job.archive.n_bytes is None or size < job.archive.n_bytes else 0


class Answer(NamedTuple):
    response: http.client.HTTPResponse
    start: int  # the place in the file of the body's first byte
    total: int | None  # length of the whole file


def ask(job: Job, start: int) -> Answer:
    """Asks for the bytes from start on; the answer may start at 0 all the same."""
    try:
        response = send(job, start)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return ask(job, 0)
        raise FetchError(
            f"{job.url} answers {error.code} {reason(error.reason)}; try again later, or find the official "
            f"{job.archive.file_name} and put it into {job.folder}"
        ) from error
    first, total = span(response)
    if first not in (0, start):
        response.close()
        if start:
            return ask(job, 0)
        raise FetchError(f"{job.url} sends a part of the file when asked for all of it; {job.by_hand}")
    if None not in (total, job.archive.n_bytes) and total != job.archive.n_bytes:
        response.close()
        raise FetchError(
            f"{job.url} offers {total} bytes but the official file has {job.archive.n_bytes}, so something "
            f"between may have answered in its place (a proxy, a login page); {job.by_hand}"
        )
    return Answer(response, first, job.archive.n_bytes or total)


def send(job: Job, start: int) -> http.client.HTTPResponse:
    """Sends one request and returns the answer; an HTTPError is left to the caller."""
    headers = {"User-Agent": "ibinn", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = urllib.request.build_opener(WebRedirects)
    try:
        response: http.client.HTTPResponse = opener.open(
            urllib.request.Request(job.url, headers=headers), timeout=job.timeout
        )
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise broken(job, error.reason) from error
        raise FetchError(
            f"cannot reach {job.url}: {reason(error.reason)}; check the network connection and run the "
            f"command again, or {job.by_hand}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise broken(job, error) from error
    return response


def span(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """Where the body starts in the file (None: not said) and how long the whole file is, if known."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def read(job: Job, response: http.client.HTTPResponse) -> bytes:
    """The next bytes as soon as some are there; empty at the end."""
    try:
        return response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise broken(job, error) from error


def broken(job: Job, error: Exception) -> Interrupted:
    return Interrupted(
        f"nothing came for {job.timeout:g} s"
        if isinstance(error, TimeoutError)
        else f"the connection failed ({reason(error)})"
    )


def reason(error: object) -> str:
    """One line: the system's own words if it has some."""
    return " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
